# Two commands do all the set-up: `make run` does the main job, `make test` passes the tests.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test soak check installation clean

run: .venv/installed
	$(BIN)/python -m evals.run --program multihop --task congress

test: .venv/installed-test
	$(BIN)/python -m pytest

soak: .venv/installed-soak
	$(BIN)/python tests/by_folder.py tests/soak

check: .venv/installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What .ci/run needs, installed at once, so that packages are resolved once
installation:
	$(MAKE) EXTRAS='[check,test]' .venv/installed
	touch .venv/installed-test .venv/installed-check

clean:
	rm -rf .venv

# Without an NVIDIA GPU, torch comes from PyTorch's index of CPU builds, without CUDA. Where that index
# cannot be reached, the next step takes torch from the ordinary one (docs/decisions/installation.md).
CPU_BUILDS = --index-url https://download.pytorch.org/whl/cpu --timeout 5 --retries 0
EXTRAS ?=

# An installation is as old as its stamp: it is made again only when one of these files changes.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	command -v nvidia-smi || $(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps $(CPU_BUILDS) -qq torch \
		|| echo "PyTorch's CPU builds cannot be reached; torch comes from the ordinary index"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".$(EXTRAS)"
	touch $@

.venv/installed-%: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@
