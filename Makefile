# The developer's interface: check, fix, test, bench, docs, and the quickstart.
# Each target makes the environment it needs in .venv; python3 (3.11 or newer) and make are enough to begin with.
# Another interpreter: make PYTHON=python3.13 check

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Without what they share, what needs a GPU or other projects' clients, without what takes hours (babylm, finetuning_rates, learning, predictions, tasks, vocabulary), and
# without prepare.py and train_tokenizer.py, of which one case is enough.
BENCHMARKS := $(filter-out $(patsubst %,benchmarks/%.py,attention_gpu babylm cloud_clients cloud_stand_in contenders corpora finetuning_rates learning learning_data learning_report learning_torch memory predictions prepare tasks train_tokenizer turns vocabulary),$(wildcard benchmarks/*.py))
LONG := slow or needs_peer or soak or fuzz or compiles
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python

unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes, each of which would compile all modules again

.PHONY: help check fix test test-slow test-fuzz test-soak test-wheel bench docs quickstart lock environment clean

help:
	@echo "make check       format, lint, types, import directions: before every commit"
	@echo "make fix         format, and repair what can be repaired"
	@echo "make test        the tests, slow ones left out   (one of them: $(BIN)/pytest tests/config)"
	@echo "make test-slow   every recipe compiled for its TPU, and the estimates against published runs; half an hour, then seconds"
	@echo "make test-fuzz   5,000 damaged files of each format, none of which may end in a traceback; about ten minutes"
	@echo "make test-soak   runs that are killed, stopped and starved dozens of times, alone and on two hosts; about half an hour"
	@echo "make test-wheel  a wheel, installed into an empty environment, and the quickstart from it"
	@echo "make bench       the benchmarks, one after another (torch is installed to compare with)"
	@echo "make docs        the documentation, into ./site"
	@echo "make quickstart  the whole path from text to model, in ./quickstart"
	@echo "make lock        resolve pyproject.toml's dependencies into requirements.lock"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/pytest -q tests/test_imports.py tests/test_repository.py

fix: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What was compiled before is remembered in ~/.cache/tpulm/tests.
test: $(READY)
	$(BIN)/pytest -n auto --dist worksteal -m "not ($(LONG))"

# One at a time: the compiler takes all cores. What was compiled before is remembered in ~/.cache/tpulm/plans.
test-slow: $(READY)
	$(BIN)/pytest -n0 -m "slow or compiles" tests/plan

test-fuzz: $(READY)
	$(BIN)/pytest -n auto --dist worksteal -m fuzz tests/fuzz

test-soak: $(READY)
	$(BIN)/pytest -n0 -s -m soak

# A wheel of this tree with the dependencies it declares, in an environment that has nothing else; their versions are the lock's.
test-wheel: $(READY)
	rm -rf build/wheel
	$(BIN)/hatchling build --target wheel --directory build/wheel
	sed -e '/^ *--hash/d' -e 's/ *\\$$//' requirements.lock > build/wheel/constraints.txt
	$(PYTHON) -m venv build/wheel/venv
	$(BIN)/uv pip install --quiet --python build/wheel/venv/bin/python --constraint build/wheel/constraints.txt build/wheel/*.whl || \
	  build/wheel/venv/bin/pip install --quiet --disable-pip-version-check --constraint build/wheel/constraints.txt build/wheel/*.whl
	cd build/wheel && venv/bin/tpulm quickstart --workdir quickstart

bench: $(READY)
	$(BIN)/python -c 'import torch, accelerate' 2> /dev/null || \
	  $(BIN)/pip install --quiet --disable-pip-version-check "torch==2.13.0" "accelerate==1.15.0"
	set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done
	@echo "== benchmarks/prepare.py --case ko"
	$(BIN)/python benchmarks/prepare.py --case ko
	@echo "== benchmarks/train_tokenizer.py --copies 1"
	$(BIN)/python benchmarks/train_tokenizer.py --copies 1

docs: $(READY)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would hide the warnings from --strict, too
	@echo "site/index.html"

quickstart: $(READY)
	$(BIN)/tpulm quickstart --workdir quickstart

# Versions and hashes alone: where packages come from is each machine's own setting.
lock: $(READY)
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --upgrade \
	  --group dev --extra hf --extra tfds --extra languages --extra ja --extra ko --extra beam --extra gcs --extra cloud --extra emulator --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

environment: $(READY)

# uv itself comes by its hash from the lock, through pip. Where only pip knows the package index, pip does it all (slowly).
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tpulm needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	awk '/^[^ #]/ { on = /^uv==/ } on' requirements.lock > $(VENV)/uv.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock
	$(INSTALL) --compile-bytecode --require-hashes -r requirements.lock || \
	  $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(INSTALL) --no-deps --no-index --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) site quickstart build dist .pytest_cache .ruff_cache .hypothesis
