# Two commands for newcomers: `make run` and `make test`. Each prepares what it needs, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# TORCH_INDEX chooses another index for torch alone, such as the one with small CPU builds.
TORCH ?= torch==2.13.0
TORCH_INDEX ?=

.PHONY: run test test-all gpu-check lint package package-check deb clean

run: $(VENV)/.installed
	@$(BIN)/appliance serve $(ARGS)

test: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest -q -m "not slow"

test-all: $(VENV)/.installed-package $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest -q

# On a machine with an NVIDIA card: checks every kernel, measures steps, runs requests; within six minutes.
# Needs only torch and triton, so GPU_PYTHON may be an interpreter that has these and nothing of ours.
GPU_PYTHON ?= python3
gpu-check:
	$(GPU_PYTHON) -m benchmarks.gpu $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy

# One executable file in dist/, for this system.
package: $(VENV)/.installed-package
	$(BIN)/python packaging/package.py $(ARGS)

# Tries the built file in empty environments; builds it first where there is none. ARGS="--kills 100" kills it
# a hundred times; as root, ARGS="--bare-tree DIR" also starts it in a tree that debootstrap made.
package-check: $(VENV)/.installed-package $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q tests/packaged $(ARGS)

deb: package
	$(BIN)/python packaging/debian.py

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(TORCH_INDEX) $(TORCH)
	@touch $@

$(VENV)/.installed: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install -q -e .
	@command -v g++ >/dev/null || command -v clang++ >/dev/null || $(BIN)/python -m pip install -q -e '.[compiler]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

$(VENV)/.installed-package: $(VENV)/.installed
	$(BIN)/python -m pip install -q -e '.[package]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
