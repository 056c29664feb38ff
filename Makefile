# `make demo` and `make test` are all a newcomer needs: both create .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# A process for each core; the tests of a file share what they prepare.
SIDE_BY_SIDE := --numprocesses auto --dist loadfile

.PHONY: install demo test test-slow soak check format clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("pdecnn needs Python >= 3.11, found " + sys.version.split()[0] + "; run make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/pdecnn train
	$(BIN)/pdecnn evaluate "$$(ls -td runs/hamiltonian_digits-* | head -n 1)"

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow and not gpu" $(SIDE_BY_SIDE)

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m "slow and not gpu and not alone" --durations 40 $(SIDE_BY_SIDE)
	$(BIN)/python -m pytest -m "slow and not gpu and alone"

# Faults, hostile files and long trainings: about half an hour; writes docs/results/soak.md.
soak: $(INSTALLED)
	$(BIN)/python -m benchmarks.soak

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
