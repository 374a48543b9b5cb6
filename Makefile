# All set-up from a bare machine with Python and pip: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The oldest torch is 2.11.0, which brings 4 GB of CUDA libraries: make test-oldest OLDEST_TORCH=2.11.0
OLDEST_TORCH := 2.13.0
OLDEST := .venv-oldest-$(OLDEST_TORCH)

.PHONY: quickstart test test-all test-oldest lint format clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	sed 's/^torch==.*/torch==$(OLDEST_TORCH)/' constraints-oldest.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLDEST)/constraints.txt \
		-e ".[triton]" hypothesis pytest pytest-timeout
	touch $@

quickstart: $(INSTALLED)
	$(BIN)/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no recipes/splade_v26.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

test-all: lint
	$(BIN)/python -m pytest -m "not gpu"

# What touches the interfaces of transformers, sentence-transformers and accelerate, with their oldest versions.
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest tests/losses tests/models tests/training tests/distributed

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-oldest-* build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
