# Every target sets up what it needs first; a second call is quick. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
FORERUN_EXTRA ?= cpu
PYTEST_ARGS ?=
# Of pytest-xdist, for tests that wait more than they compute. Engines take all cores, so tests/e2e runs one by one.
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist loadfile
MODEL := smollm2-135m
PROMPT ?= Explain in two sentences why the sky is blue.

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(FORERUN_EXTRA)
PROTOS := $(shell find protos -name '*.proto')

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: model ## Set up, start router, scheduler and two stages, stream one answer, stop
	$(BIN)/forerun up -f deploy/local.yaml --prompt "$(PROMPT)" --exit

.PHONY: run
run: model ## Set up, start everything, stream one answer, serve until Ctrl-C
	$(BIN)/forerun up -f deploy/local.yaml --prompt "$(PROMPT)"

.PHONY: test
test: model ## Set up and run all tests: unit, integration, end to end
	@failed=0; \
	$(BIN)/pytest tests/unit tests/integration $(SIDE_BY_SIDE) $(PYTEST_ARGS) || failed=1; \
	$(BIN)/pytest tests/e2e -m "not nodes" $(PYTEST_ARGS) || failed=1; \
	exit $$failed

.PHONY: unit
unit: setup ## Unit tests only: seconds, no model
	$(BIN)/pytest tests/unit $(SIDE_BY_SIDE) $(PYTEST_ARGS)

.PHONY: test-nodes
test-nodes: setup ## The three-node compose topology in network namespaces: seven minutes, needs root
	$(BIN)/pytest tests/e2e -m nodes $(PYTEST_ARGS)

.PHONY: quality
quality: setup ## Lint, format check, types, protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos
	$(BIN)/python scripts/check_protos.py
	$(BIN)/python scripts/build_dashboards.py --check

.PHONY: style
style: setup ## Format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format --write protos

.PHONY: protos
protos: setup ## Generate the gRPC code again
	$(BIN)/uv pip install --quiet -p $(BIN)/python --no-deps -e .

.PHONY: dashboards
dashboards: setup ## Write Grafana's dashboards again
	$(BIN)/python scripts/build_dashboards.py

.PHONY: model
model: setup ## Fetch the small model into the cache
	$(BIN)/forerun models get $(MODEL)

.PHONY: lock
lock: setup ## Resolve the dependencies again into requirements-*.lock
	scripts/lock.sh $(VENV)

.PHONY: setup
setup: $(INSTALLED) ## Virtual environment with all dependencies (FORERUN_EXTRA=cpu or cuda)

# hatch_build.py generates the gRPC code while it installs, hence the protos.
$(INSTALLED): requirements-$(FORERUN_EXTRA).lock pyproject.toml hatch_build.py scripts/generate_protos.py scripts/install.sh $(PROTOS)
	PYTHON="$(PYTHON)" scripts/install.sh $(VENV) $(FORERUN_EXTRA)
	@rm -f $(VENV)/.installed-*
	@touch $@

.PHONY: clean
clean: ## Remove the environment, generated code, caches and run folders; keeps fetched models
	rm -rf $(VENV) generated .forerun .mypy_cache .ruff_cache .pytest_cache .hypothesis
