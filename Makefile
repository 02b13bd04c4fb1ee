# Every target is safe to repeat; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo docs quick test check coverage nightly matrix bench fuzz kill lock release clean

PY := .venv/bin/python
FUZZ_SECONDS ?= 60
CYCLES ?= 10000
SEED ?= 1
PYTHONS ?= 3.11 3.12 3.13

# Two processes, each with its own servers and its own Spark session. The tests of a file stay together.
PARALLEL := -n 2 --dist loadfile
QUICK := -q $(PARALLEL) -m "not slow and not servers and not nightly" tests/unit tests/compat

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: ## tour every face on a local folder; installs only what the tour needs
	@scripts/setup --demo
	$(PY) examples/demo.py

setup: ## install everything, with the servers that the tests run against
	@scripts/setup --servers

quick: check ## for every edit: lint, types and the fast tests
	$(PY) -m pytest $(QUICK)

docs: ## build the documentation as a site, in build/site
	@scripts/setup
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

test: setup check ## what CI runs: lint, types and all tests
	$(PY) -m pytest $(PARALLEL) -m "not nightly"

check: ## lint, format and types
	@scripts/setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

coverage: ## the fast tests, and which lines and branches they do not reach
	@scripts/setup
	$(PY) -m pytest $(QUICK) --cov --cov-report=term:skip-covered

nightly: test coverage fuzz kill ## everything, with coverage and the long forms of tests, fuzz and kill
	$(PY) -m pytest -m nightly

matrix: ## the fast tests on each Python of PYTHONS (default 3.11 3.12 3.13)
	@scripts/matrix $(PYTHONS) -- $(QUICK)

bench: ## measure, and print ratios against plain Arrow, bare PUTs, SlateDB and LanceDB
	@scripts/setup
	$(PY) -m bench

fuzz: ## fuzz each decoder for FUZZ_SECONDS (default 60), twice: checked and unchecked
	@scripts/setup
	$(PY) -m fuzz --seconds $(FUZZ_SECONDS)

kill: ## kill -9 a writer CYCLES times (default 10000), by SEED, and check what it leaves
	@scripts/setup
	@mkdir -p .cache/kill
	$(PY) -m tests.support.crash.kill_loop "file://$(CURDIR)/.cache/kill/$(SEED)" --cycles $(CYCLES) --seed $(SEED) --tidy

lock: ## resolve pyproject.toml into requirements.lock and requirements-demo.lock
	@scripts/setup --lock

release: ## build the sdist and the wheel, and try each in a clean environment
	@scripts/setup
	@scripts/release

clean: ## remove everything that setup, tests and tools made here
	rm -rf .venv .cache build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
