# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Both make .venv and install with pip when it is missing or older than pyproject.toml, setup.py or the C sources.
#
#   make demo PORT=8011        another port for the task app
#   make test TESTS=tests/core only some tests
#   make test WORKERS=2        test files shared by two processes, each a GB with torch: half the time
#   PIP_ARGS="--index-url …"   passed to pip

PYTHON ?= python3
PORT ?= 8010
TESTS ?= tests
WORKERS ?= 0
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint setup clean

setup: $(READY)

$(READY): pyproject.toml setup.py $(wildcard task_app/apps/crafter/engine/*.c task_app/apps/crafter/engine/csrc/*.h)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; set PYTHON=…"; exit 1; }
	@echo "Setting up .venv (a few minutes the first time) …"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -e '.[train,modal,ray,viewer,dev]'
	@touch $@

demo: $(READY)
	$(BIN)/task-app demo --port $(PORT)

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(TESTS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

clean:
	rm -rf .venv runs/demo traces/demo.db*
