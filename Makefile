# Two commands do all the set-up: `make run` does the main job, `make test` passes the tests.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test soak check clean

run: .venv/installed
	$(BIN)/python -m evals.run --program multihop --task congress

test: .venv/installed-test
	$(BIN)/python -m pytest

soak: .venv/installed-test
	$(BIN)/python -m pytest tests/soak

check: .venv/installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv

# An installation is as old as its stamp: it is made again only when one of these files changes.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

.venv/installed-check: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[check]"
	touch $@
