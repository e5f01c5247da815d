#!/usr/bin/env bash
# All that is to be measured on an NVIDIA GPU, from a fresh tree, in less than ten minutes: one JSON file.
#
#     PYTHON=python3 benchmarks/gpu.sh [FILE]      default FILE: gpu.json
#
# Wants JAX with its CUDA plugin, and torch with CUDA, in PYTHON's environment (default .venv/bin/python); SECONDS_EACH
# limits each part (default 180), CASES names train_step.py's. A part that fails is in the file as its last line of output,
# and the others go on. REAL_DATA names the folder for finetune.py, which is left out without one.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python} file=${1:-gpu.json} data=${REAL_DATA:-../shared/data}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} XLA_PYTHON_CLIENT_PREALLOCATE=false
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT

measure() { # NAME SCRIPT OPTIONS...; the script writes its figures into the file that it is given last
  local name=$1
  shift
  echo "== $* ($SECONDS s)"
  if ! timeout "${SECONDS_EACH:-180}" "$python" "$@" "$parts/$name.json" 2>&1 | tee "$parts/$name.log"; then
    tail -n 1 "$parts/$name.log" | "$python" -c 'import json, sys; print(json.dumps({"failed": sys.stdin.read().strip()}))' \
      >"$parts/$name.json"
  fi
}

for case in ${CASES:-bert-base-512 bert-base-128 causal-512 electra-small-128}; do
  measure "train_step $case" benchmarks/train_step.py --cases "$case" --rounds 5 --contenders tpulm-bfloat16 torch-gathered-bfloat16 \
    torch-compiled-bfloat16 matmul-jax-bfloat16 matmul-torch-bfloat16 --json
done
measure "generate" benchmarks/generate.py --json
if [ -d "$data" ]; then
  measure "finetune" benchmarks/finetune.py --rounds 2 --data "$data" --json
else
  echo "== no finetune.py: $data is not a folder"
fi

"$python" - "$parts" "$file" <<'PYTHON'
import json, pathlib, platform, subprocess, sys
from importlib import metadata

parts, file = map(pathlib.Path, sys.argv[1:])
found = {path.stem: json.loads(path.read_text()) for path in sorted(parts.glob("*.json"))}
gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], capture_output=True, text=True, check=False) if pathlib.Path("/usr/bin/nvidia-smi").exists() else None
versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "torch", "transformers")}
machine = {"gpu": gpu.stdout.strip() if gpu else None, "processor": platform.processor(), "python": platform.python_version()}
file.write_text(json.dumps({"machine": machine, "versions": versions, "results": found}, indent=1))
PYTHON
echo "== $file ($SECONDS s)"
