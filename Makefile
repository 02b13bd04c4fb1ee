# Every target is safe to repeat; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo docs test check bench fuzz kill clean lock

PY := .venv/bin/python
FUZZ_SECONDS ?= 60
CYCLES ?= 10000
SEED ?= 1

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install everything, with the servers that the tests run against
	@scripts/setup --servers

demo: ## set up what is needed and run the tour on a file:// bucket
	@scripts/setup
	$(PY) examples/demo.py

docs: ## build the documentation as a site, in build/site
	@scripts/setup
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

test: setup check ## set up everything, check the code and run all tests
	$(PY) -m pytest

check: ## lint, format and types
	@scripts/setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: ## measure, and print ratios against plain Arrow, bare PUTs, SlateDB and LanceDB
	@scripts/setup
	$(PY) -m bench

fuzz: ## fuzz each decoder for FUZZ_SECONDS (default 60), twice: checked and unchecked
	@scripts/setup
	$(PY) -m fuzz --seconds $(FUZZ_SECONDS)

kill: ## kill -9 a writer CYCLES times (default 10000), by SEED, and look at what is left
	@scripts/setup
	@mkdir -p .cache/kill
	$(PY) -m tests.crash.kernel_kill "file://$(CURDIR)/.cache/kill/$(SEED)" --cycles $(CYCLES) --seed $(SEED) --tidy

lock: ## resolve pyproject.toml anew into requirements.lock
	@scripts/setup --lock

clean: ## remove everything that setup, tests and tools made here
	rm -rf .venv .cache build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
