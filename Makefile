# The two commands a stranger needs: `make serve` and `make test`. Both set everything up first.

PYTHON ?= python3
ARGS ?=
JOBS ?= 2
BIN := .venv/bin
PYTEST := $(BIN)/pytest

.DEFAULT_GOAL := help
.PHONY: help setup serve chat test test-slow soak recording lint format draft bench clean

help:
	@echo "make setup      virtual environment, dependencies, demo model"
	@echo "make serve      set up and serve;    ARGS='--port 9000' passes flags"
	@echo "make chat       talk to the server;  ARGS='--url http://host:port'"
	@echo "make test       set up, lint, and all tests but the slow ones"
	@echo "make test-slow  the tests that take minutes"
	@echo "make soak       10,000 requests to a tiny model, half of them cancelled; prints figures"
	@echo "make recording  record the schedule anew that tests/recordings holds"
	@echo "make lint       ruff and mypy"
	@echo "make draft      train the demo model's draft anew (hours)"
	@echo "make bench      where the time of a step goes"
	@echo "make clean      remove caches and build outputs (make setup rebuilds)"

setup: .venv/.installed .cache/.demo

# A step of its own: on machines whose index offers several builds, this one is known to work.
# Where it has no build for this Python, the range in pyproject.toml picks another.
.venv/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	  "Paceline needs Python 3.11 or newer: make PYTHON=/path/to/python3")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install torch==2.13.0 || echo "no torch 2.13.0 here; taking another 2.x"
	@touch $@

.venv/.installed: pyproject.toml .venv/.torch
	$(BIN)/python -m pip install -e '.[test,bench]'
	@command -v cc gcc clang >/dev/null || $(BIN)/python -m pip install ziglang || \
	  echo "no C compiler: weights stay in 16 bits"
	@touch $@

# The version of the conversion is in there.
.cache/.demo: .venv/.installed models/source.py
	$(BIN)/python -m paceline.models.source demo
	@mkdir -p $(@D) && touch $@

serve: setup
	$(BIN)/paceline serve $(ARGS)

chat: setup
	$(BIN)/paceline chat $(ARGS)

# One thread each: two teams of threads on two cores wait for each other.
test: setup lint
	OMP_NUM_THREADS=1 $(PYTEST) -m "not slow" -n $(JOBS) --dist loadfile $(ARGS)

test-slow: setup
	$(PYTEST) -m slow $(ARGS)

soak: setup
	$(PYTEST) -s -m slow tests/actors/test_soak.py $(ARGS)

RECORDING := tests/recordings/soak.msgpack
recording: setup
	rm -f $(RECORDING)
	SOAK_REQUESTS=100 SOAK_RECORDING=$(RECORDING) $(PYTEST) -k 100-1 tests/actors/test_soak.py

# The root is the package, so mypy finds its name through a link.
.venv/src/paceline: | .venv/.installed
	mkdir -p $(@D) && ln -sfn ../.. $@

lint: .venv/.installed .venv/src/paceline
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Hours on two cores; the same command goes on. Its files, but for work/, belong in models/demo_draft.
draft: setup
	$(BIN)/paceline draft train --model demo --out .cache/demo_draft --tokens 1040000 \
	  --learn 5900000 --rate 2e-3 --batch 2048 --draft-vocab 8192 $(ARGS)

bench: setup
	$(BIN)/python -m paceline.bench.steps $(ARGS)

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
