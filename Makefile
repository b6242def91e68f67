# One target, one job. It needs Python 3.11 or newer and make, nothing else.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The first Python that really runs: a name on the PATH may be a stub that only prints an error.
ifndef PYTHON
PYTHON := $(shell for name in python3.13 python3.12 python3.11 python3; do \
  if "$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
     >/dev/null 2>&1; then echo "$$name"; break; fi; done)
endif

VENV := .venv
SAM_VENV := .venv-sam
SCAN_VENV := .venv-scan
RUNTIME_VENV := .venv-runtime
PEERS_VENV := .venv-peers
export PYTHONPATH := .:shared
# No calls home, and no account: nothing here talks to AWS.
export SAM_CLI_TELEMETRY := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
OFFLINE := AWS_DEFAULT_REGION=us-east-1 AWS_ACCESS_KEY_ID=none AWS_SECRET_ACCESS_KEY=none
TYPED := functions shared/sume_jobs local

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort -s -k1,1 \
	  | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

# ---- Set up -------------------------------------------------------------------------------------

# $(call environment,FOLDER,LOCK): a virtual environment in FOLDER with what LOCK lists.
define environment
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer with venv was found. Install one," \
	  "or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 \
	  || { echo "Creating $(1) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(1); }
	@echo "Installing $(2) into $(1)"
	@$(1)/bin/python -m pip install -qq -r $(2)
endef

$(VENV)/.local: requirements/local.txt
	$(call environment,$(VENV),$<)
	@touch $@

$(VENV)/.dev: requirements/dev.txt
	$(call environment,$(VENV),$<)
	@touch $(VENV)/.local $@

$(SAM_VENV)/.sam: requirements/sam.txt
	$(call environment,$(SAM_VENV),$<)
	@touch $@

$(SCAN_VENV)/.scan: requirements/scan.txt
	$(call environment,$(SCAN_VENV),$<)
	@touch $@

# With the Python of the functions where this machine has it; where not, there is nothing to set up.
$(RUNTIME_VENV)/.runtime: requirements/runtime.txt $(VENV)/.dev
	@runtime=$$($(VENV)/bin/python -m local.sam_build --python) && { \
	  $(RUNTIME_VENV)/bin/python -m pip --version >/dev/null 2>&1 \
	  || "$$runtime" -m venv $(RUNTIME_VENV); } \
	  && echo "Installing $< into $(RUNTIME_VENV)" \
	  && $(RUNTIME_VENV)/bin/python -m pip install -qq -r $< && touch $@ || true

.PHONY: setup setup-dev setup-sam
setup: $(VENV)/.local ## Install what demo and up need
setup-dev: $(VENV)/.dev ## Install what test, lint and types need
setup-sam: $(SAM_VENV)/.sam ## Install the SAM command line tool, apart from the rest

# ---- Run ----------------------------------------------------------------------------------------

# Variables such as PROMPTS, SUME_BASE_URL, SUME_API_KEY and DATABASE_URL reach these through the
# environment, whether they stand before make or after it.
.PHONY: demo up events
demo: setup ## Send a file of prompts through the whole bundle (PROMPTS=file)
	@$(VENV)/bin/python -m local.demo

up: setup ## Run the whole bundle here until interrupted
	@$(VENV)/bin/python -m local.up

events: setup ## Sign the sample webhook events anew
	@$(VENV)/bin/python -m local.sign_events

.PHONY: certificates
certificates: setup ## Put the certificates of Amazon RDS into the layer, before sam build
	@$(VENV)/bin/python -m local.certificates

# ---- Measure ------------------------------------------------------------------------------------

# The peers come from PyPI and npm; one that cannot be had is left out, and the run says why.
NODE_PEERS := tests/benchmarks/peers/node
$(PEERS_VENV)/.peers: requirements/peers.txt
	$(call environment,$(PEERS_VENV),$<)
	@touch $@

.PHONY: bench bench-flat bench-long bench-peers bench-compare bench-docs cost
bench-peers: ## Install the other queues, and what draws the plots
	-@$(MAKE) $(PEERS_VENV)/.peers
	-@if command -v npm >/dev/null; then cd $(NODE_PEERS) && npm ci --no-audit --no-fund --silent; \
	  else echo "No npm here: the peers in Node are left out"; fi

bench: setup-dev bench-peers ## Measure beside other queues, at most 12 minutes (ARGS="queue_core" for a part)
	@$(VENV)/bin/python -m tests.benchmarks $(ARGS)

bench-long: setup-dev bench-peers ## Measure what takes long: every budget and latency, and the disk
	@$(VENV)/bin/python -m tests.benchmarks --long budget ends
	@$(VENV)/bin/python -m tests.benchmarks --disk queue_core

bench-flat: setup-dev ## Measure beside millions of rows, backlogs and retention: 30 minutes, 12 GB of memory
	@$(VENV)/bin/python -m tests.benchmarks.flat
	@$(VENV)/bin/python -m tests.benchmarks.housekeeping

bench-compare: setup-dev ## Compare two kept runs (A=.local/bench/….json B=….json)
	@$(VENV)/bin/python -m tests.benchmarks.compare $(A) $(B)

bench-docs: setup-dev bench-peers ## Write the newest figures and plots into docs/benchmarks.md
	@$(VENV)/bin/python -m tests.benchmarks.document

cost: setup-dev ## Print what 1,000 jobs cost on AWS, from measured numbers
	@$(VENV)/bin/python -m tests.benchmarks cost

# ---- Check --------------------------------------------------------------------------------------

# One process more than cores: many tests wait for a server or a clock, not for the processor.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n > 7 ? 8 : n + 1)))

.PHONY: test test-postgres lint format format-check types template scan build runtime sam-local check
test: setup-dev ## Run all tests (ARGS="-k name" for some)
	@$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# The template deploys PostgreSQL 16, and the embedded server of the other tests is newer.
POSTGRES ?= 16
DATABASE_TESTS := tests/database tests/pitfalls/test_postgres.py tests/property tests/api tests/dispatch
test-postgres: setup-dev ## Run the database's tests on another PostgreSQL (POSTGRES=16, or a folder of programs)
	@TEST_POSTGRES=$(POSTGRES) $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(DATABASE_TESTS) $(ARGS)

lint: setup-dev ## Look for mistakes in the code
	@$(VENV)/bin/ruff check .

format: setup-dev ## Format the code
	@$(VENV)/bin/ruff check --fix-only -q . && $(VENV)/bin/ruff format .

format-check: setup-dev ## Tell whether the code is formatted
	@$(VENV)/bin/ruff format --check .

types: setup-dev ## Check types, strictly
	@$(VENV)/bin/mypy $(TYPED)

template: setup-dev setup-sam ## Lint the SAM templates (make test has the assertions)
	@$(OFFLINE) $(SAM_VENV)/bin/sam validate --lint
	@$(VENV)/bin/cfn-lint -a cfn_lint_serverless.rules && echo "cfn-lint: nothing found"

scan: $(SCAN_VENV)/.scan ## Look for unsafe settings in the templates
	@$(SCAN_VENV)/bin/checkov --config-file .checkov.yaml

build: setup-sam ## Build for both processors and inspect what would be deployed
	@$(OFFLINE) $(SAM_VENV)/bin/python -m local.sam_build

# Both use what the last build made.
.aws-sam/built: $(shell find shared functions template.yaml -type f -not -path '*/__pycache__/*' 2>/dev/null)
	@$(MAKE) build

runtime: setup-dev setup-sam $(RUNTIME_VENV)/.runtime .aws-sam/built ## Run the built functions under Lambda's runtime emulator
	@test -x $(RUNTIME_VENV)/bin/python \
	  && $(VENV)/bin/python -m pytest -q tests/runtime/test_emulator.py \
	  || { test ! -x $(RUNTIME_VENV)/bin/python && echo "NOT RUN: the runtime emulator needs a" \
	  "working Python 3.13 with pip, the version the functions run on, and none was found here."; }

# SAM_LOCAL_IMAGE names another image than the public one, SAM_LOCAL_FLAGS further options of sam local.
PUBLIC_IMAGE := public.ecr.aws/lambda/python:3.13
sam-local: setup-dev setup-sam .aws-sam/built ## Run every function in containers by sam local (needs Docker)
	@if ! test -f .aws-sam/built; then echo "NOT RUN: sam local needs what sam build makes."; \
	elif ! docker info >/dev/null 2>&1; then \
	  echo "NOT RUN: sam local needs Docker, and it does not answer here."; \
	elif test -z "$$SAM_LOCAL_IMAGE" && ! docker pull -q $(PUBLIC_IMAGE) >/dev/null 2>&1; then \
	  echo "NOT RUN: sam local needs $(PUBLIC_IMAGE), which cannot be pulled here."; \
	else RUN_SAM_LOCAL=1 $(VENV)/bin/python -m pytest -q tests/runtime/test_sam_local.py; fi

.PHONY: permissions deploy-check deploy
permissions: setup-dev ## Write docs/permissions.md anew from the template
	@$(VENV)/bin/python -m tests.template.permissions

deploy-check: template scan build runtime ## Prove all that can be proved about a deployment without AWS
	@$(VENV)/bin/python -m pytest -q -n $(WORKERS) tests/template tests/aws
	@$(VENV)/bin/python -m tests.template.proved

STAGE ?= default
deploy: setup-dev setup-sam ## Build and deploy (STAGE=prod for another part of samconfig.toml)
	@$(SAM_VENV)/bin/sam build --config-env $(STAGE)
	@$(VENV)/bin/python -m local.sam_build --compile .aws-sam/build
	@parameters=$$($(VENV)/bin/python -m local.build_digest $(STAGE)) && eval \
	  "$(SAM_VENV)/bin/sam deploy --config-env $(STAGE) --parameter-overrides $$parameters"

check: test test-postgres lint format-check types template scan build runtime sam-local ## Run all that CI runs

.PHONY: clean
clean: ## Remove environments, builds and caches
	@rm -rf $(VENV) $(SAM_VENV) $(SCAN_VENV) $(RUNTIME_VENV) $(PEERS_VENV) $(NODE_PEERS)/node_modules .aws-sam .pytest_cache .mypy_cache .ruff_cache .hypothesis
