# Two commands do all the set-up: `make run` does the main job, `make test` passes the tests.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test plain smoke soak check docs installation clean

run: .venv/installed
	$(BIN)/sextant run --program multihop --task congress

test: .venv/installed-test
	$(BIN)/python -m pytest

# In an environment of its own, with the wheel and no extra
plain: .venv/installed-test
	$(BIN)/python -m pytest tests/plain

# The few tests of the soak tier that .ci/run runs, too
smoke: .venv/installed-test
	$(BIN)/python -m pytest tests/soak construction/tests/soak -m smoke

# CONTRIBUTING.md has what brings a language model for it
soak: .venv/installed-soak
	$(BIN)/python tests/by_folder.py tests/soak construction/tests/soak

check: .venv/installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The pages of docs/ as a site in site/, with search; links are checked, and the notebooks run
docs: .venv/installed-docs
	COLUMNS=80 $(BIN)/python -m mkdocs build --strict

# What .ci/run needs, installed at once, so that packages are resolved once
installation:
	$(MAKE) EXTRAS='[check,test]' .venv/installed
	touch .venv/installed-test .venv/installed-check

clean:
	rm -rf .venv

EXTRAS ?=

# An installation is as old as its stamp: it is made again only when one of these files changes.
.venv/installed: pyproject.toml construction/pyproject.toml constraints.txt
	PYTHON=$(PYTHON) .ci/install "$(EXTRAS)"
	touch $@

.venv/installed-%: .venv/installed
	.ci/install "[$*]"
	touch $@
