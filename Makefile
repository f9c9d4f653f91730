# `make demo` and `make test` set up all that they need in .venv on a machine that has only
# Python 3.11 to 3.13 and make. Nothing is installed again until pyproject.toml or
# constraints.txt changes.

PYTHON ?= python3
# pytest processes: 0 runs the tests in the one that you see (for a debugger), 3 in three, and so
# on. On two cores, two of them would wait for a third of the time.
JOBS ?= 3
# The share of a slow test's cases that `make test` runs; see tests/support/scaling.py.
TOWERPACK_TEST_SCALE ?= 0.05
ARGS ?=

BIN := .venv/bin
RUN_READY := .venv/.ready-to-run
DEV_READY := .venv/.ready-to-develop
SETTINGS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-full check docs dist dist-full format bench mutants public-names constraints clean

# Without it each pytest process rewrites all tests once more, and each program compiles all of src.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo          train, evaluate and export a small model, and show the result"
	@echo "make test          all tests, of slow ones a sample; ARGS='-k name' for some"
	@echo "make test-full     all tests in full"
	@echo "make check         formatting, lint, types, layers and spelling: what CI runs"
	@echo "make docs          the website, in build/docs/index.html"
	@echo "make dist          build sdist and wheel, and try the wheel in an empty environment"
	@echo "make format        format and mend what can be mended by a machine"
	@echo "make bench         the benchmarks"
	@echo "make mutants       plant mistakes in changed files: which does no test notice? ARGS=FILE"
	@echo "make public-names  write the list of public names after changing them"
	@echo "make clean         remove caches and build results; .venv stays"

demo: $(RUN_READY)
	$(BIN)/towerpack demo $(ARGS)

test: $(DEV_READY)
	TOWERPACK_TEST_SCALE=$(TOWERPACK_TEST_SCALE) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-full:
	$(MAKE) test TOWERPACK_TEST_SCALE=1

# Pyright's own wheel holds the checker; without this it also asks the network for a newer one.
check: export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
check: $(DEV_READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell

docs: $(DEV_READY)
	$(BIN)/sphinx-build -E -W -n -q docs build/docs

# Without a source tree: the wheel is built from the sdist, and tried without constraints.txt.
dist: $(DEV_READY)
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/python tests/wheel.py $(EXTRAS_TO_TRY)

dist-full:
	$(MAKE) dist EXTRAS_TO_TRY=every

format: $(DEV_READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(DEV_READY)
	@set -e; for file in $(wildcard benchmarks/[!_]*.py); do \
		echo "== $$file"; $(BIN)/python $$file $(ARGS); \
	done

mutants: $(DEV_READY)
	$(BIN)/python tests/mutants.py $(ARGS)

public-names: $(DEV_READY)
	$(BIN)/python tests/unit/test_public_names.py

constraints: $(DEV_READY)
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip freeze --exclude towerpack; } > .venv/constraints.new
	@mv .venv/constraints.new constraints.txt

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN_READY): EXTRAS := all
$(RUN_READY): STAMPS := $(RUN_READY)
$(DEV_READY): EXTRAS := all,dev
$(DEV_READY): STAMPS := $(RUN_READY) $(DEV_READY)

$(RUN_READY) $(DEV_READY): $(SETTINGS)
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		command -v $(PYTHON) >/dev/null || { \
			echo "make: no '$(PYTHON)' on this machine: install Python 3.11, 3.12 or 3.13." >&2; exit 1; }; \
		$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
			echo "make: '$(PYTHON)' is $$($(PYTHON) --version 2>&1); Python 3.11, 3.12 or 3.13 is needed:" \
				"make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }; \
		$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
			echo "make: '$(PYTHON)' lacks its venv module. On Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }; \
		$(PYTHON) -m venv .venv; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $(STAMPS)
