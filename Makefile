# make demo: set up and run the whole pipeline.   make test: set up and check everything.   make help: all targets.
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
CHECKS := $(VENV)/.checks
# Number of processes of make test, of which each spends a third of its time waiting for servers and browsers; and of
# those that run tests in real time, which come after the others so that no training takes the processor from them.
JOBS   ?= 3
REALTIME_JOBS ?= 2
# In the order of their names: the files with the fewest tests, which would come last, take the longest.
PYTEST  = $(BIN)/pytest --dist loadfile --no-loadscope-reorder --timeout 900 --durations 25
ORDINARY := not slow and not gpu and not hardware and not peers
# Tests with the marks $(1), in both parts even where one fails. Pytest ends with 5 if it has selected no test.
define tested
@failed=0; ran=no; for part in other realtime; do \
  jobs=$(JOBS); [ $$part = other ] || jobs=$(REALTIME_JOBS); code=0; \
  $(PYTEST) --part $$part -n $$jobs -m "$(1) and $(ORDINARY)" $(ARGS) || code=$$?; \
  [ $$code = 5 ] || ran=yes; [ $$code = 0 ] || [ $$code = 5 ] || failed=$$code; \
done; [ $$ran = yes ] || failed=5; exit $$failed
endef

# The first of these that exists and can create a virtual environment is used; PYTHON=... names another one.
PYENV   := $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions
PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.13 python3 $(wildcard $(PYENV)/3.1[123].*/bin/python))
SUITS   := import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
# pip, because on some mirrors only pip finds the pinned CPU build of torch.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 \
  --constraint constraints.txt --editable

# Demonstrations beside the checkout, where they are; Handoff itself searches no folder that is not named.
ifneq ($(wildcard ../shared/data),)
export HANDOFF_DATA ?= $(abspath ../shared/data)
endif
export OMP_NUM_THREADS ?= 1
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
# Images of containers often forbid Python to keep what it compiles: each of the hundreds of processes of a run would
# compile torch, Prefect and Handoff anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo server test nightly learn claims peers bench gpu-pusht-image lint format docs clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

$(BIN)/python:
	@for python in $(PYTHONS); do \
	  if "$$python" -c '$(SUITS)' 2>/dev/null; then exec "$$python" -m venv $(VENV); fi; \
	done; \
	echo "No Python 3.11, 3.12 or 3.13 that can create a virtual environment. Looked for $(PYTHONS)" >&2; \
	echo "and in $(PYENV). On Debian and Ubuntu: apt install python3 python3-venv. Or run make demo PYTHON=/its/path." >&2; \
	exit 1

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV); this takes a few minutes" >&2
	$(INSTALL) '.[laptop]'
	@touch $@

# In one step, and without compiling modules of which the checks import a few: that takes 0.6 of the time.
$(CHECKS): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the checks need into $(VENV); this takes a few minutes" >&2
	$(INSTALL) '.[laptop,dev,maniskill,warp]' --no-compile
	@touch $(READY) $@

## make demo          from demonstrations to a moving FR3 twin; ends with a summary and an HTML report
demo: $(READY)
	@$(BIN)/handoff run demo $(ARGS)

## make server        a Prefect server with every recipe deployed and a worker: http://127.0.0.1:4200
server: $(READY)
	@$(BIN)/handoff server $(ARGS)

## make test          ruff, pyright, import-linter, unit and real-component tests, a short end-to-end run
test: $(CHECKS) lint
	$(call tested,not nightly)

## make nightly       tests of further families, methods and engines, of which make test runs some each
nightly: $(CHECKS)
	$(call tested,nightly)

## make learn         learning checks with their negative controls (minutes each), and a table; ONLY=name runs one
learn: $(CHECKS)
	$(BIN)/pytest -p tests.learning_report --outcomes docs/results/learning_checks.json \
	  -m slow -s $(if $(ONLY),-k $(ONLY)) $(ARGS)

## make claims        repeats claims of the results, the longest unrepeated first; MINUTES=110
claims: $(READY)
	@$(BIN)/handoff reproduce --within $(or $(MINUTES),110) $(ARGS)

## make peers         other projects' tools read what we write, and the other way round (new environments)
peers: $(CHECKS)
	$(BIN)/pytest -m peers $(ARGS)

## make bench         throughput of the environments against its limits; prints one JSON object last
bench: $(CHECKS)
	@$(BIN)/python -m tests.benchmarks.environments --json $(ARGS)

## make gpu-pusht-image  push-T from images on a GPU, then 200 episodes; ARGS="teacher.training.steps=20000"
gpu-pusht-image: $(READY)
	@$(BIN)/handoff run push_t_image $(ARGS)

## make lint          static checks only
lint: $(CHECKS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --threads 2
	$(BIN)/lint-imports

## make format        automatic fixes and formatting by ruff
format: $(CHECKS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## make docs          HTML documentation in site/; needs no server
docs: $(CHECKS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

## make clean         remove results and caches, keep the virtual environment
clean:
	rm -rf runs site .pytest_cache .ruff_cache .import_linter_cache .hypothesis
