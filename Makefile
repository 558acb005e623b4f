# Onward. `make help` lists what there is to do.
# Everything needs Python 3.11 or later, make and a package index; nothing else, and no root.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TESTS  ?= tests
JOBS   ?= 5

# What was compiled once is kept: the tests start some hundred processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check prove bench lint format lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 18

demo: $(STAMP) ## a ten-minute deploy in fast motion, killed in step 8, that goes on (under 30 s); WHICH=agent plays an agent
	@$(BIN)/onward demo $(WHICH)

test: $(STAMP) lint ## everything: linters, types and the whole test suite (some 35 min on two cores)
	$(BIN)/python -m pytest $(TESTS) -n $(JOBS) --dist loadgroup

check: $(STAMP) lint ## the quick part of it (some 15 min on two cores)
	$(BIN)/python -m pytest $(TESTS) -n $(JOBS) --dist loadgroup -m "not slow"

lint: $(STAMP) ## formatting, linters, types, layers
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache >$(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }

prove: $(STAMP) ## the long proofs: hundreds of kill -9, zombies, database restarts, thousands of simulated hours
	$(BIN)/python -m pytest tests -n 0 -m slow -s --prove

test-all: test prove ## everything there is: the tests, and then the proofs at full size

bench: $(STAMP) ## the benchmark table; PEERS=1 adds the neighbours in the same run
	$(BIN)/python -m bench $(if $(PEERS),--peers) $(BENCH)

format: $(STAMP) ## format the code
	$(BIN)/ruff format -q .
	$(BIN)/ruff check -q --fix .

lock: ## write requirements.lock anew from pyproject.toml
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install -q '.[dev]'
	$(VENV)-lock/bin/pip freeze --exclude onward | grep -v ' @ ' > requirements.lock
	rm -rf $(VENV)-lock

clean: ## remove what was made here
	rm -rf $(VENV) .cache .bench .hypothesis .mypy_cache .ruff_cache dist

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Onward needs Python 3.11 or later; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "preparing $(VENV) (once)…"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q --disable-pip-version-check -r requirements.lock
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps -e .
	@touch $(STAMP)
