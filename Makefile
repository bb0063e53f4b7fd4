# make demo: set up and run the whole chain.   make test: set up and check everything.   make help: the rest.
VENV   := .venv
PYTHON ?= python3.11
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ENGINES := $(VENV)/.engines
# Processes of make test. One waits half the time: for twins, servers, browsers.
JOBS   ?= 2

export OMP_NUM_THREADS ?= 1
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false

.PHONY: help demo test learn bench gpu-pusht-image lint format clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

# gym-pusht and SAPIEN ask for the windowed opencv, which a machine without OpenGL and X libraries cannot even import.
define headless_opencv
	$(BIN)/python -m pip uninstall --quiet --yes opencv-python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
	  --constraint constraints.txt opencv-python-headless
endef

# pip, because the pinned CPU build of torch is found by pip alone on some mirrors.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or say make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(headless_opencv)
	@touch $@

# The demo does without it.
$(ENGINES): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[maniskill,warp]'
	$(headless_opencv)
	@touch $@

## make demo          demonstrations to a moving FR3 twin; ends with a summary and an HTML report
demo: $(READY)
	@$(BIN)/handoff run demo $(ARGS)

## make test          ruff, pyright, import-linter, unit and real-component tests, a short end-to-end run
test: $(READY) $(ENGINES) lint
	$(BIN)/pytest -n $(JOBS) --dist loadfile --timeout 600 -m "not slow and not gpu and not hardware" $(ARGS)

## make learn         learning checks with their negative controls (minutes each); ONLY=name runs one
learn: $(READY)
	$(BIN)/pytest -m slow -s $(if $(ONLY),-k $(ONLY)) $(ARGS)

## make bench         speeds of the worlds against their limits, one JSON object last
bench: $(READY)
	@$(BIN)/python -m tests.benchmarks.worlds --json $(ARGS)

## make gpu-pusht-image  push-T from pictures on a GPU, then 200 episodes; ARGS="pretrain.training.steps=20000"
gpu-pusht-image: $(READY)
	@$(BIN)/handoff run push_t_image $(ARGS)

## make lint          the static checks alone
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

## make format        what ruff can mend
format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## make clean         remove results and caches, keep the environment
clean:
	rm -rf runs .pytest_cache .ruff_cache .import_linter_cache .hypothesis
