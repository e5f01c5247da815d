#!/usr/bin/env bash
# What is to be measured on an NVIDIA GPU, from a fresh tree: one JSON file.
#
#     PYTHON=python3 benchmarks/gpu.sh [FILE]      default FILE: gpu.json
#
# Wants JAX with its CUDA plugin, torch with CUDA, transformers and accelerate in PYTHON's environment (default
# .venv/bin/python). PARTS names what runs, in this order; on an H100 the first five take four minutes. SECONDS_EACH limits a
# part (default 150) and SECONDS_IN_ALL all of them (default 570). A part that fails is in the file as its last line of output,
# one for which no time is left as skipped, and the others go on. REAL_DATA names the folder for finetune.py, which makes texts
# up without one.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python} file=${1:-gpu.json} all=${SECONDS_IN_ALL:-570}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} XLA_PYTHON_CLIENT_PREALLOCATE=false TOKENIZERS_PARALLELISM=true
PARTS=${PARTS:-resumed bert-base-128 unrolled-128 bert-base-512 attention finetune generate causal-512 electra-small-128 products}
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT

measure() { # NAME COMMAND...; the command writes its figures into the file that it is given last
  local name=$1 seconds=$((all - SECONDS)) each=${SECONDS_EACH:-150}
  shift
  if ((seconds < 20)); then
    echo "== skipped: $name"
    echo '{"skipped": "no time was left"}' >"$parts/$name.json"
    return
  fi
  echo "== $name ($SECONDS s)"
  local limit=$((seconds < each ? seconds : each)) said
  if ! timeout --kill-after=5 "$limit" "$@" "$parts/$name.json" 2>&1 | tee "$parts/$name.log"; then
    said="exit ${PIPESTATUS[0]} (124: after $limit s), $(tail -n 1 "$parts/$name.log")"
    "$python" -c 'import json, sys; print(json.dumps({"failed": sys.argv[1]}))' "$said" >"$parts/$name.json"
  fi
}

step() { # CASE CONTENDERS...; two at a time, since three fill 80 GB
  measure "train_step $*" "$python" benchmarks/train_step.py --cases "$1" --at-once --rounds 5 --contenders "${@:2}" --json
}

resumed() { # FILE: whether a run, the same run again, and one that is killed and goes on give the same weights
  local folder one
  folder=$(mktemp -d)
  arguments() { echo "-m tpulm run quickstart --set train.steps=300 --set train.evaluate_every_steps=100 --set train.checkpoint.every_steps=50 --workdir $folder/$1"; }
  for one in whole again; do "$python" $(arguments $one) 2>&1 | tail -n 3; done
  "$python" $(arguments killed) >/dev/null 2>&1 &
  one=$!
  until [[ -e $folder/killed/checkpoints/100 ]] || ! kill -0 $one; do sleep 0.05; done
  kill -9 $one
  "$python" $(arguments killed) 2>&1 | grep "^note: continuing"
  (cd "$folder" && sha256sum */export/model.safetensors) | tee "$folder/sums"
  "$python" -c 'import json, sys; print(json.dumps(dict(line.split()[::-1] for line in open(sys.argv[1]))))' "$folder/sums" >"$1"
  rm -rf "$folder"
}
export -f resumed
export python

for part in $PARTS; do
  case $part in
  resumed) measure resumed bash -c 'resumed "$1"' resumed ;;
  attention) measure attention "$python" benchmarks/attention_gpu.py --json ;;
  finetune) measure finetune "$python" benchmarks/finetune.py --rounds 2 --rows "${ROWS:-5000}" --data "${REAL_DATA:-../shared/data}" --json ;;
  generate) measure generate "$python" benchmarks/generate.py --rounds 2 --json ;;
  products) measure products "$python" benchmarks/train_step.py --cases bert-mini --rounds 3 --contenders matmul-jax-bfloat16 matmul-torch-bfloat16 --json ;;
  unrolled-*) step "bert-base-${part#*-}" tpulm-bfloat16 tpulm-bfloat16-unrolled ;;
  *) step "$part" tpulm-bfloat16 torch-compiled-bfloat16 ;;
  esac
done

"$python" - "$parts" "$file" <<'PYTHON'
import json, pathlib, platform, shutil, subprocess, sys
from importlib import metadata

parts, file = map(pathlib.Path, sys.argv[1:])
found = {path.stem: json.loads(path.read_text()) for path in sorted(parts.glob("*.json"))}
gpu = None
if shutil.which("nvidia-smi"):
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    gpu = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
installed = {one.metadata["Name"]: one.version for one in metadata.distributions()}
versions = {name: installed.get(name) for name in ("jax", "jaxlib", "torch", "triton", "transformers", "accelerate")}
machine = {"gpu": gpu, "processor": platform.processor(), "python": platform.python_version()}
file.write_text(json.dumps({"machine": machine, "versions": versions, "results": found}, indent=1))
PYTHON
echo "== $file ($SECONDS s)"
