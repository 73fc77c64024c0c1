# Every target makes its own environment first; a second call finds it ready.
#
#   make report      export, verify and time attention; says where the report is
#   make test        the default tests
#   make test-slow   the slow ones
#   make lint types imports   style, types, the one-way imports
#   make docs        build the documentation into docs/_build
#   make models      export every layer of the catalog into models/ again
#   make bench       time exported graphs and compare their forms, about 90 s; BENCH=FILE keeps the figures there
#   make clean       remove the environment and what tools left behind
#
# PYTHON=python3.12 chooses the interpreter, VENV=folder where the environment goes (no spaces).

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
EXTRAS ?= dev
# Processes that share the tests.
JOBS ?= 2
# The files with tests that run alone: to collect all others would take longer than to run these.
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)
# Compare two of these with `pytest-benchmark compare .benchmarks/A.json .benchmarks/B.json --group-by=fullname`.
ifndef BENCH
BENCH := .benchmarks/$(shell date -u +%Y%m%dT%H%M%SZ).json
endif

BIN := $(VENV)/bin
# Inside the environment, so that whoever removes the one removes the other. Written last, so that an interrupted
# install leaves none and the next call goes on.
STAMP := $(VENV)/.installed

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: report test test-slow lint types imports docs models bench clean

report: $(STAMP)
	@echo "Running the suite quick (about four minutes on two cores)" >&2
	@$(BIN)/sdpa-onnx run quick

# Two processes share the tests; those that time something run alone afterwards. loadscope keeps the tests of a module
# together, which share its fixtures; among the slow ones a few modules take most of the time, so worksteal splits them.
test: $(STAMP)
	@$(BIN)/python -m pytest -m "not slow and not alone" -n $(JOBS) --dist=loadscope
	@$(BIN)/python -m pytest -m "alone and not slow" $(ALONE)

test-slow: $(STAMP)
	@$(BIN)/python -m pytest -m "slow and not alone" -n $(JOBS) --dist=worksteal
	@$(BIN)/python -m pytest -m "slow and alone" $(ALONE)

lint: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(STAMP)
	@$(BIN)/mypy

imports: $(STAMP)
	@$(BIN)/lint-imports

# A warning is an error; all of them are listed first.
docs: $(STAMP)
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build
	@echo "docs/_build/index.html"

models: $(STAMP)
	@$(BIN)/python -m sdpa_onnx.workflows.export.models_folder models

bench: $(STAMP)
	@mkdir -p $(dir $(BENCH))
	@$(BIN)/python -m pytest tests/benchmarks/bench_attention.py tests/benchmarks/bench_forms.py \
	  --benchmark-warmup=on --benchmark-max-time=0.5 --benchmark-json=$(BENCH)
	@echo "$(BENCH)"

clean:
	rm -rf $(VENV) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find sdpa_onnx tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "sdpa-onnx needs Python 3.11 or newer, and '$(PYTHON)' is not: try make PYTHON=python3.12." >&2; exit 1; }; \
	  $(PYTHON) -m venv --clear $(VENV) || { \
	    echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu the package python3-venv is missing." >&2; exit 1; }; }
	@echo "Installing into $(VENV) (some minutes the first time: PyTorch is large)" >&2
	@start=$$(date +%s); \
	  $(BIN)/python -m pip install -q -c $(CONSTRAINTS) -e '.[$(EXTRAS)]' && \
	  echo "Installed into $(VENV) in $$(($$(date +%s) - start)) s" >&2
	@touch $@
