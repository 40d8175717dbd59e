# Everything runs inside .venv; the first target that needs it sets it up.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup agents quickstart seeds test check lint format clean

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The real agents that the tests drive; each is kept in the user's cache (or $$OPENFORGE_AGENTS) until its pinned version changes.
agents: setup
	$(BIN)/openforge agents install --all

quickstart: setup
	$(BIN)/openforge models fetch smollm2-135m-instruct
	$(BIN)/openforge train examples/calculator/run.yaml --set run_dir=runs/quickstart-$$(date +%Y%m%d-%H%M%S)

seeds: setup
	$(BIN)/openforge models fetch smollm2-135m-instruct
	$(BIN)/python examples/calculator/seeds.py 0 1 2

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint
	$(BIN)/pytest -m "not slow" -n 2 --hypothesis-profile=check

test: lint agents
	$(BIN)/openforge models fetch smollm2-135m-instruct
	$(BIN)/pytest

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist
