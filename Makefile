# Onward. `make help` lists what there is to do.
# Everything needs Python 3.11 or later, make and a package index; nothing else, and no root.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.base
STAMP  := $(VENV)/.installed
TESTS  ?= tests
JOBS   ?= 4
PYTEST := $(BIN)/python -m pytest --dist loadgroup
QUICK  := $(PYTEST) --files-in-memory -n $(JOBS)

# What was compiled once is kept: the tests start some hundred processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo check test test-full test-slow test-alone test-roles coverage prove bench lint lint-types lint-style lint-layers lint-house format docs lock audit sbom clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 18

demo: $(if $(filter brokers temporal,$(WHICH)),$(STAMP),$(BASE)) ## a ten-minute deploy in fast motion, killed in step 8, that goes on; WHICH=agent, WHICH=brokers, WHICH=temporal
	@$(BIN)/python -m onward demo $(WHICH)

check: $(STAMP) lint ## linters, types, and the core on SQLite (2 minutes on two cores)
	$(QUICK) tests/core tests/engine tests/service tests/test_house.py -m "not slow and not postgres"

test: $(STAMP) lint ## what a change needs: linters, types, and all quick tests (5 minutes on two cores)
	$(QUICK) $(TESTS) -m "not slow"

test-full: $(STAMP) ## the rest: kill storms, browsers, fuzzers, conformance suites, both databases everywhere (some 40 minutes)
	@$(MAKE) --no-print-directory -k test-slow test-alone test-roles

test-slow: $(STAMP)
	$(PYTEST) $(TESTS) -n $(JOBS) -m "slow and not alone" --durations=60
test-alone: $(STAMP)
	$(PYTEST) $(TESTS) -n 1 -m "alone" --durations=20
test-roles: $(STAMP)
	$(PYTEST) tests/store -n $(JOBS) -m "postgres and not slow and not owner" --roles

coverage: $(STAMP) ## the quick tests, and which lines of src/ they do not run
	$(QUICK) $(TESTS) -m "not slow" --cov=onward --cov-report=term-missing:skip-covered

prove: $(STAMP) ## the long proofs: hundreds of kill -9, zombies, database restarts, thousands of simulated hours
	$(BIN)/python -m pytest tests -n 0 -m slow -s --prove

lint: $(STAMP) ## formatting, linters, types, layers, house rules: beside each other
	@$(MAKE) --no-print-directory -k -j 2 lint-types lint-style lint-layers lint-house

lint-types:
	$(BIN)/mypy
lint-style:
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
lint-layers:
	$(BIN)/lint-imports --no-cache >$(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
lint-house:
	$(BIN)/python -m tools.house_rules

bench: $(STAMP) ## the benchmark table; PEERS=1 adds the neighbours in the same run
	$(BIN)/python -m bench $(if $(PEERS),--peers) $(BENCH)

format: $(STAMP) ## format the code
	$(BIN)/ruff format -q .
	$(BIN)/ruff check -q --fix .

docs: ## build the documentation site into site/
	@test -x $(VENV)-docs/bin/mkdocs || { $(PYTHON) -m venv $(VENV)-docs && $(VENV)-docs/bin/pip install -q --disable-pip-version-check --no-deps -r requirements/docs.txt; }
	PYTHONPATH=src $(VENV)-docs/bin/mkdocs build --strict

lock: ## write requirements/*.txt anew from pyproject.toml
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/pip install -q uv
	$(VENV)-lock/bin/python -m tools.lock
	rm -rf $(VENV)-lock

audit: $(VENV)-audit/bin/pip-audit ## look for known vulnerabilities of the locked packages; needs the advisory database of PyPI
	$(VENV)-audit/bin/python -m tools.audit

sbom: $(VENV)-audit/bin/pip-audit ## write the software bill of materials (CycloneDX) of the locked packages to dist/sbom.json
	@mkdir -p dist
	$(VENV)-audit/bin/cyclonedx-py requirements requirements/runtime.txt --pyproject pyproject.toml --output-reproducible -o dist/sbom.json

clean: ## remove what was made here
	rm -rf $(VENV) $(VENV)-docs $(VENV)-audit .coverage .cache .bench .hypothesis .mypy_cache .ruff_cache dist site

$(VENV)-audit/bin/pip-audit: requirements/audit.txt
	@rm -rf $(VENV)-audit && $(PYTHON) -m venv $(VENV)-audit
	@$(VENV)-audit/bin/pip install -q --disable-pip-version-check --no-deps -r requirements/audit.txt

$(BASE): pyproject.toml requirements/base.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Onward needs Python 3.11 or later; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "preparing $(VENV) (once)…"
	@$(PYTHON) -m venv --without-pip $(VENV)
	@$(PYTHON) -m pip --python $(BIN)/python install -q --disable-pip-version-check --no-compile --no-deps -r requirements/base.txt 2>/dev/null \
	  || { $(BIN)/python -m ensurepip && $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -r requirements/base.txt; }
	@$(BIN)/python -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "onward-checkout.pth").write_text(str(pathlib.Path("src").resolve()))'
	@touch $(BASE)

$(STAMP): $(BASE) requirements/dev.txt
	@echo "installing the tools of developers (once)…"
	@$(BIN)/python -m ensurepip >/dev/null
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -r requirements/dev.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@rm -f $(VENV)/lib/python*/site-packages/onward-checkout.pth
	@touch $(STAMP)
