# Foreshore: everything a person or a machine runs. `make help` lists it.
#
# Every target sets up what it needs: a virtual environment with the locked dependencies, the package in editable
# mode, and a Java runtime for Spark when the machine has none of 17, 21 or 25. A second run installs nothing.

SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PYTHONHASHSEED ?= random
# Bytecode is written, whatever the machine prefers: without it each node, command and test worker compiles all modules anew.
export PYTHONDONTWRITEBYTECODE :=
export FORESHORE_JAVA_HOME ?= $(shell test -d "$(CURDIR)/$(VENV)/jre" && echo "$(CURDIR)/$(VENV)/jre")

.PHONY: help setup demo test check bytecode sim sim-long crash rewrite docs spark-archive bench lock clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements.lock requirements-jre.lock pyproject.toml tools/setup.sh
	@tools/setup.sh $(VENV)

setup: $(READY) ## create .venv, install the locked dependencies, find or install Java

demo: $(READY) ## the whole story with real data: load, kill, failover, history, replacement, reconciliation
	@$(BIN)/foreshore demo $(ARGS)

test: $(READY) ## every check and every test
	@$(MAKE) --no-print-directory -j 2 check bytecode
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal $(ARGS)

check: $(READY) ## format, lint, types, import contracts, and what a type checker tells users
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@said=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$said"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/python -m tests.typing

# Made where types leave a processor idle: else each worker of the tests compiles everything anew.
bytecode: $(READY) ## compile all that tests import, and find out whether it can be imported
	@$(BIN)/python -m pytest -qq --collect-only >$(VENV)/collected 2>&1 || { cat $(VENV)/collected; exit 1; }

sim: $(READY) ## replay one seed of the simulation with its trace: make sim SEED=7
	@$(BIN)/python -m tests.sim run --seed $(or $(SEED),1) -v

sim-long: $(READY) ## 10,000 seeds, recorded in docs/track-record.md
	@$(BIN)/python -m tests.sim long --seeds $(or $(SEEDS),1-10000)

crash: $(READY) ## kill -9 of real node processes under load, 1,000 cycles; NEMESIS=1: links, names and disks as well
	@$(BIN)/python -m tests.crash --cycles $(or $(CYCLES),1000) $(if $(NEMESIS),--nemesis)

rewrite: $(READY) ## write the answers of the conversations anew; the diff is the review
	@$(BIN)/python -m pytest -q tests/conversations -p no:xdist --rewrite

docs: $(READY) ## the reference of the API as static pages, in build/reference
	@$(BIN)/python -m tests.reference build/reference

spark-archive: $(READY) ## this project for Spark's executors, in build/foreshore-spark.tar.gz
	@$(BIN)/python -m tools.reconcile.archive build/foreshore-spark.tar.gz

bench: $(READY) ## every figure that README or ARCHITECTURE claims, measured here
	@$(BIN)/foreshore bench $(ARGS)
	@$(BIN)/python -m tests.sim cost
	@$(BIN)/python -m tests.sim bytecodes

lock: $(READY) ## resolve the dependencies anew (needs pip-tools)
	@tools/lock.sh $(VENV)

clean: ## remove the virtual environment and all caches
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build *.egg-info spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
