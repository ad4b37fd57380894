# Each target sets up what it needs in .venv by itself; `make help` lists them.

MODEL ?=
IMAGE ?=
# Test processes. The GPU tests share one device, so more processes than cores only slow each other down.
JOBS ?= 2
BIN := .venv/bin

.PHONY: help setup demo test test-full lint docs bench wheel clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup:  ## Make .venv again and look for a GPU again
	@scripts/setup --again

demo: .ready  ## Run a network on the GPU and on the CPU and compare (MODEL=x.tflite IMAGE=y.jpg for your own)
	@$(BIN)/litegpu demo $(if $(MODEL),"$(MODEL)") $(if $(IMAGE),--image "$(IMAGE)") --output demo-output

test: .ready  ## Run the tests (half an hour on two cores; PART=1/3: a third of the cases of those with many)
	$(BIN)/python -m pytest -n $(JOBS) -rs $(if $(PART),--part=$(PART))

test-full: .ready  ## Run the tests and the long sweeps, then plant defects (hours on a software driver)
	$(BIN)/python -m pytest -n $(JOBS) -m "slow or not slow"
	scripts/plant --jobs $(JOBS)

lint: .ready  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .ready  ## Build the API reference in build/docs, and look for dead links in it and in all pages
	$(BIN)/python scripts/docs

bench: .ready  ## Run the benchmarks that the docs quote (on NVIDIA: benchmarks/h200.py beside its peers)
	scripts/bench

wheel: .ready  ## Build the packages; try the wheel with the oldest and the newest dependencies
	$(BIN)/python scripts/wheel

clean:  ## Remove .venv, caches and outputs
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist demo-output

.PHONY: .ready
.ready:
	@scripts/setup
