# Every target makes .venv first when it is missing.
PYTHON ?= python3
OLDEST_PYTHON := $(shell sed -n 's/^requires-python = ">=\(.*\)"/\1/p' pyproject.toml)
BIN := .venv/bin
# Bytecode is kept even where the shell asks for none: compiling the tests takes each process longer than importing torch.
# Temporary files are in memory where there is room: thousands are synced and removed, and a disk takes longer than the tests.
IN_MEMORY := $(shell grep -q ' /dev/shm .*noexec' /proc/mounts 2>/dev/null || \
	df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8000000 { print "TMPDIR=/dev/shm" }')
PYTEST := $(IN_MEMORY) PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
SCHEMES ?= rope,alibi,coca,coca_strict
# More words for the training of make quickstart and make compare: make quickstart WORDS="train.max_steps=100 run.name=short"
WORDS ?=

.DEFAULT_GOAL := help
.PHONY: help setup constraints quickstart compare test test-all outside mutations check bench gpu wheels docs scheme scaling pattern suite

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The package index has torch with CUDA's libraries, 3 GB. TORCH=cpu takes a build without them, TORCH=cu126 and so on
# another CUDA's: what uv calls a torch backend.
TORCH ?=
# Without bytecode, which takes as long as all else: Python compiles what is imported, and most of torch never is.
PIP := $(BIN)/python -m pip install --quiet --no-compile
INSTALL := $(if $(TORCH),$(PIP) uv && $(BIN)/uv pip install --quiet --torch-backend $(TORCH),$(PIP)) -c constraints.txt

# What a training needs; tests, peers and checks need more.
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) -e .
	@touch $@

.venv/installed: .venv/ready
	$(INSTALL) -e ".[dev]"
	@touch $@

setup: .venv/installed  ## make .venv and install everything, versions pinned; TORCH=cpu: without CUDA

# constraints.txt is this command's output, for every platform and every Python that pyproject.toml allows. What it pins
# stays as it is unless UPGRADE names it: make constraints UPGRADE="torch transformers", or UPGRADE=all.
UPGRADE ?=
constraints:  ## resolve constraints.txt again, from the plain package index
	test -x $(BIN)/uv || { test -x $(BIN)/python || $(PYTHON) -m venv .venv; $(BIN)/python -m pip install --quiet uv; }
	$(BIN)/uv pip compile --quiet --universal --all-extras --no-annotate --python-version $(OLDEST_PYTHON) \
		--custom-compile-command "make constraints" \
		$(if $(filter all,$(UPGRADE)),--upgrade,$(addprefix --upgrade-package ,$(UPGRADE))) pyproject.toml -o constraints.txt

quickstart: .venv/ready  ## train a small CoCA model on real text and show how far its context reaches
	$(BIN)/python -m coca_train $(WORDS)

compare: .venv/ready  ## the same training for several schemes, compared: SCHEMES="rope coca alibi kerple_log"
	$(BIN)/python -m coca_train compare schemes="$(SCHEMES)" $(WORDS)

test: .venv/installed  ## tests, a quarter of an hour on 2 cores
	$(PYTEST)

test-all: .venv/installed  ## the long ones too (fault campaigns, every case of large products)
	$(PYTEST) -m "slow or not slow"

outside: .venv/installed  ## what others say: index, packages, Pythons, versions of torch, recipes. Most of a day, resumable
	@$(BIN)/python -m tests.outside

mutations: .venv/installed  ## do the tests catch what they caught of mutations drawn by chance? An hour or two
	$(BIN)/python -m tests.mutations.run

check: .venv/installed  ## style, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python -m tests.house.imports

bench: .venv/installed  ## speed and memory against transformers, as ratios in one run
	$(BIN)/python -m benchmarks.run

# make gpu PARTS="exact losses" runs these alone; PARTS="micro --minutes 5" passes options on.
PARTS ?=
gpu:  ## the first hour on a GPU: what was counted, measured; some of it: PARTS="exact losses". Without .venv by python3
	$(if $(wildcard $(BIN)/python),$(BIN)/python,python3) -m benchmarks.gpu $(PARTS)

# Everything that training and tests/gpu need next to torch and numpy, for the Python of the machine that has no network:
# make wheels PYTHON_THERE=3.12. tests/gpu/test_wheels.py holds the lists to what the packages require.
PYTHON_THERE ?= 3.12
BUILT := antlr4-python3-runtime deepspeed
LOADED := annotated-types contourpy cycler einops execnet fonttools hjson hydra-core iniconfig kiwisolver matplotlib msgpack \
	ninja omegaconf packaging pillow pluggy psutil py-cpuinfo pydantic pydantic-core pygments pyparsing pytest \
	pytest-xdist python-dateutil pyyaml safetensors scipy sentencepiece tqdm typing-extensions typing-inspection tzdata
wheels:  ## packages for a GPU machine without network, into .whl
	rm -rf .whl
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version $(PYTHON_THERE) --implementation cp \
		$(addprefix --platform ,$(foreach glibc,28 27 26 24 17,manylinux_2_$(glibc)_x86_64) manylinux2014_x86_64) \
		-c constraints.txt -d .whl $(LOADED)
	$(PYTHON) -m pip wheel --quiet --no-deps -c constraints.txt -w .whl $(BUILT)

docs: .venv/installed  ## regenerate docs/*configuration.md, schemes.md and figures
	$(BIN)/python -m coca_train --markdown > docs/configuration.md
	$(BIN)/python -m data_prep --markdown > docs/data_configuration.md
	$(BIN)/python -m coca_train evaluate --markdown > docs/evaluation_configuration.md
	$(BIN)/python -m coca_train schemes --markdown > docs/schemes.md
	rm -f docs/figures/*.svg  # those of schemes that are gone
	$(BIN)/python -m coca_train schemes figures=docs/figures
	$(BIN)/python -m tests.house.error_codes > docs/errors.md
	$(BIN)/python -m tests.house.conformance > docs/conformance.md
	$(BIN)/python -m tests.house.atlas > docs/atlas_results.md

scheme:  ## stubs of a position scheme: make scheme NAME=mine; then scaling, pattern, suite in the same way
scheme scaling pattern suite: .venv/installed
	@$(BIN)/python -m coca_train.testing.stubs $@ "$(NAME)"
