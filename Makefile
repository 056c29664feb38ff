# `make demo` and `make test` are all a newcomer needs: every target creates .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What training needs, and with it what developing needs: tests, linters, ONNX.
RUNTIME_INSTALLED := $(VENV)/.runtime-installed
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.docs-installed
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check
# A process for each core. Tests that share what they prepare stay together, but for those that an
# idle process takes from a busy one.
SIDE_BY_SIDE := --numprocesses auto --dist worksteal
# Else every test process would rewrite all assertions anew, for some 5 s.
unexport PYTHONDONTWRITEBYTECODE
# What depends on how a processor's kernels round: gradients, reversal, training, earlier scores.
ROUNDING := tests/gradients tests/unit/pde tests/unit/fast tests/unit/networks/test_reversal.py \
  tests/unit/learning/test_guard.py tests/end_to_end/test_earlier_versions.py \
  --ignore tests/gradients/test_memory.py

.PHONY: install lock demo test test-slow test-isa test-avx2 test-plain soak mutants check docs wheel format clean

install: $(INSTALLED)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("pdecnn needs Python >= 3.11, found " + sys.version.split()[0] + "; run make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(RUNTIME_INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --constraint constraints.txt --editable .
	touch $@

# LOCKED=1, as in CI: everything by version and hash, but torch, whose build differs by machine.
$(INSTALLED): pyproject.toml constraints.txt requirements.lock | $(BIN)/python
ifdef LOCKED
	$(PIP_INSTALL) --no-deps --require-hashes --requirement requirements.lock
	$(PIP_INSTALL) --constraint constraints.txt torch
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
else
	$(PIP_INSTALL) --constraint constraints.txt --editable '.[dev]'
endif
	touch $(RUNTIME_INSTALLED) $@

$(DOCS_INSTALLED): $(INSTALLED)
ifndef LOCKED
	$(PIP_INSTALL) --constraint constraints.txt --editable '.[dev,docs]'
endif
	touch $@

# After a change of the dependencies or of constraints.txt.
lock: $(INSTALLED)
	$(BIN)/python tools/lock.py

demo: $(RUNTIME_INSTALLED)
	$(BIN)/pdecnn train
	$(BIN)/pdecnn evaluate "$$(ls -td runs/hamiltonian_digits-* | head -n 1)"

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow and not gpu" $(SIDE_BY_SIDE)

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m "slow and not gpu" --durations 40 $(SIDE_BY_SIDE)

# As on processors without AVX-512, and without AVX2: one process each, both at once with -j2.
test-isa: test-avx2 test-plain

test-avx2: export ATEN_CPU_CAPABILITY := avx2
test-avx2: export ONEDNN_MAX_CPU_ISA := AVX2
test-avx2: export MKL_ENABLE_INSTRUCTIONS := AVX2
test-plain: export ATEN_CPU_CAPABILITY := default
test-avx2 test-plain: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow and not gpu" -q $(ROUNDING)

# Faults, hostile files and long trainings: about half an hour; writes docs/results/soak.md.
soak: $(INSTALLED)
	$(BIN)/python -m benchmarks.soak

# Which of the faults in tests/mutations the tests find, at least 95 %: hours on two cores.
mutants: $(INSTALLED)
	$(BIN)/python tools/mutants.py

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DOCS_INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo open docs/_build/html/index.html

# What users install, in an empty environment of its own.
wheel:
	.ci/wheel

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist docs/_build docs/gallery .pytest_cache .hypothesis .mypy_cache .ruff_cache
