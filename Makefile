# Everything runs in .venv, which `setup` makes; every other target depends on it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.legroom-setup

# These look at everything alive in a process, tables that another test had made among it.
METERING := tests/unit/meter
# These compile and exchange what is alive.
CAPTURING := tests/unit/capture tests/unit/plan/test_callable.py
# These fit models of a few hundred KiB, in which what another file left behind counts.
FITTING := $(sort $(wildcard tests/unit/engine/test_*.py))
# A worker per core, each with one thread.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto --maxprocesses 4 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup demo docs test test-slow check format bench bench-full bench-peers clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## Make .venv with legroom and everything that it is developed with

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## Profile a small real GPT-2, plan, verify and train it in half its memory; writes demo/
	@mkdir -p demo
	$(BIN)/legroom profile --html demo/gpt2.html --json demo/gpt2.json \
		-m benchmarks.cases.gpt2 --size small --steps 4
	$(BIN)/legroom plan --budget 50% --points 3 --html demo/plan.html --json demo/plan.json \
		-m benchmarks.cases.gpt2 --size small --steps 6
	$(BIN)/legroom verify --budget 50% --steps 2 --json demo/verify.json \
		-m benchmarks.cases.gpt2 --size small --steps 6
	$(BIN)/python -W ignore examples/side_by_side.py --budget 50% --steps 5
	@echo "open demo/gpt2.html and demo/plan.html in a browser: they need no network"

docs: $(STAMP)  ## Write what the registry says into docs/, and build the site into build/docs
	$(BIN)/python docs/pages.py
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo "open build/docs/index.html in a browser: it needs no network"

test: $(STAMP)  ## Run the tests (about 15 minutes on two cores)
	$(PYTEST) $(METERING:%=--ignore=%) $(CAPTURING:%=--ignore=%) $(FITTING:%=--ignore=%)
	$(PYTEST) $(METERING)
	$(PYTEST) $(CAPTURING)
	printf '%s\n' $(FITTING) | OMP_NUM_THREADS=1 xargs -P 2 -n 1 $(BIN)/python -m pytest -q -m "not slow"

test-slow: $(STAMP)  ## Run the tests that take longer
	$(BIN)/python -m pytest -m slow

check: $(STAMP)  ## Lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## Format the code and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## Compare legroom with its main peers on three cases (15 to 25 minutes on two cores)
	$(BIN)/python -m benchmarks.run contest --quick

bench-full: $(STAMP)  ## Every theme, every case, every peer (a day or so); goes on where it was interrupted
	$(BIN)/python -m benchmarks.run all

# Without a version of its own In-Place ABN asks git for one; it is compiled on this machine.
bench-peers: $(STAMP)  ## Install packages that legroom is compared with where they are there
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt \
		torch torchao==0.18.0 bitsandbytes==0.50.2 setuptools_scm wheel
	SETUPTOOLS_SCM_PRETEND_VERSION=1.1.0 $(BIN)/pip install --quiet --disable-pip-version-check \
		-c constraints.txt --no-build-isolation --no-deps inplace-abn==1.1.0

clean:  ## Remove .venv, caches and what the demo wrote
	rm -rf $(VENV) demo build .pytest_cache .mypy_cache .ruff_cache .hypothesis
