# Two commands do all the set-up on a machine with Python 3.11+, make and a way to the package registries:
#   make demo    the main job, end to end
#   make test    everything that is tested
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test browser postgres labs lint docs bench audit lock clean

demo: $(VENV)/.runtime
	$(BIN)/headrace demo

test: $(VENV)/.dev browser postgres
	$(BIN)/pytest -n 3

# The console is tested in a real browser. Whoever may install packages gets one; others are told what is missing.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  if command -v $$name >/dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium for the tests of the console"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
	  echo "the tests of the console need a Chromium: install one (Debian: apt-get install chromium), then repeat" >&2; \
	  exit 1; \
	fi

# The PostgreSQL sink is tested against a real server, which the tests start themselves: Debian's own cluster is not made.
postgres:
	@if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing postgresql for the tests of its sink"; \
	  mkdir -p /etc/postgresql-common && [ -e /etc/postgresql-common/createcluster.conf ] || \
	    echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null; \
	else \
	  echo "the tests of the PostgreSQL sink need a server: install one (Debian: apt-get install postgresql), then repeat" >&2; \
	  exit 1; \
	fi

# Every lab with small values and the same checks, on clusters of its own; `lab run all` alone takes the documents' values.
labs: $(VENV)/.runtime
	$(BIN)/headrace --home .labs lab run all --profile fast --fresh

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py

bench: $(VENV)/.dev
	$(BIN)/python -m bench.startup

# Both locks against the advisories of audit/advisories.txt: red when a published fix has waited for two weeks.
audit: $(VENV)/.dev
	PATH=$(BIN):$$PATH $(BIN)/python -m audit.pins

# New versions for every dependency, within the bounds of pyproject.toml. The locks name no index: yours is used.
lock: $(VENV)/.dev
	$(BIN)/uv pip compile -q --upgrade pyproject.toml --generate-hashes --no-emit-index-url --no-annotate --no-header -o requirements.lock
	$(BIN)/uv pip compile -q --upgrade pyproject.toml --extra dev --generate-hashes --no-emit-index-url --no-annotate --no-header -c requirements.lock -o requirements-dev.lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python requirements.lock pyproject.toml
	@echo "installing headrace, with Spark and a Java, into $(VENV): once, a minute or more"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.lock
	@echo "installing what the tests need into $(VENV): once"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@
