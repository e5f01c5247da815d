#!/usr/bin/env bash
# All that is to be measured on an NVIDIA GPU, from a fresh tree, in less than ten minutes: one JSON file.
#
#     PYTHON=python3 benchmarks/gpu.sh [FILE]      default FILE: gpu.json
#
# Wants JAX with its CUDA plugin, torch with CUDA, transformers and accelerate in PYTHON's environment (default
# .venv/bin/python). SECONDS_EACH limits a part (default 150) and SECONDS_IN_ALL all of them (default 570); CASES names
# train_step.py's, the most important first. A part that fails is in the file as its last line of output, one for which no
# time is left as skipped, and the others go on. REAL_DATA names the folder for finetune.py, which makes texts up without one.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python} file=${1:-gpu.json} all=${SECONDS_IN_ALL:-570}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} XLA_PYTHON_CLIENT_PREALLOCATE=false TOKENIZERS_PARALLELISM=true
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT

measure() { # NAME SCRIPT OPTIONS...; the script writes its figures into the file that it is given last
  local name=$1 seconds=$((all - SECONDS)) each=${SECONDS_EACH:-150}
  shift
  if ((seconds < 20)); then
    echo "== skipped: $*"
    echo '{"skipped": "no time was left"}' >"$parts/$name.json"
    return
  fi
  echo "== $* ($SECONDS s)"
  local limit=$((seconds < each ? seconds : each)) said
  if ! timeout --kill-after=5 "$limit" "$python" "$@" "$parts/$name.json" 2>&1 | tee "$parts/$name.log"; then
    said="exit ${PIPESTATUS[0]} (124: after $limit s), $(tail -n 1 "$parts/$name.log")"
    "$python" -c 'import json, sys; print(json.dumps({"failed": sys.argv[1]}))' "$said" >"$parts/$name.json"
  fi
}

step() { # CASE CONTENDERS...
  measure "train_step $1" benchmarks/train_step.py --cases "$1" --rounds "${ROUNDS:-5}" --contenders "${@:2}" --json
}

bfloat16="tpulm-bfloat16 torch-compiled-bfloat16"
for case in ${CASES:-bert-base-512 causal-512 bert-base-128}; do
  step "$case" $bfloat16 $([[ $case == *512 ]] && echo tpulm-bfloat16-plain)
done
measure "finetune" benchmarks/finetune.py --rounds 2 --rows "${ROWS:-5000}" --data "${REAL_DATA:-../shared/data}" --json
measure "generate" benchmarks/generate.py --rounds 2 --json
for case in ${MORE_CASES-electra-small-128 bert-mini}; do
  step "$case" $bfloat16
done
measure "products" benchmarks/train_step.py --cases bert-mini --rounds 3 --contenders matmul-jax-bfloat16 matmul-torch-bfloat16 --json

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
