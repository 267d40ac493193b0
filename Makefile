# Every target sets itself up: a virtual environment in .venv, then what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt 2>/dev/null | cksum | cut -d' ' -f1)

# The oracle of the tests is PyTorch's CPU build, without gigabytes of CUDA, where its index answers.
TORCH_CPU := https://download.pytorch.org/whl/cpu
TORCH_ARGS = $(shell $(PYTHON) -c "import urllib.request as u; u.urlopen('$(TORCH_CPU)/torch/', timeout=3)" 2>/dev/null && echo "--extra-index-url $(TORCH_CPU)")

# TVM's thread pool takes half of the logical processors on x86, for SMT; the package takes what the
# process may use.  The tests' oracle, PyTorch, uses the same number.
export OMP_NUM_THREADS ?= $(shell nproc)

.PHONY: demo test test-all fuzz lint types unit test-gpu memcheck bench clean help

help:
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV): TVM, PyTorch, what the tests need; once, about 3 GB on disk and two minutes or more."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(TORCH_ARGS) --constraint constraints.txt --editable '.[dev,torch,notebooks]'
	@rm -f $(VENV)/.installed-*
	@touch $@

demo: $(STAMP)  ## train ResNet-50 on the CPU, show and check every convolution
	$(BIN)/python -m relay_wgrad train resnet50 --layout NHWC

test: lint types unit  ## what needs no GPU, in ten minutes

test-all: lint types  ## every test, planted faults, a wheel in an empty environment
	$(MAKE) unit SELECT="not gpu"
	$(BIN)/python -m tests.planted

lint: $(STAMP)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

# Two tests at a time share the cores: threads that wait for work must not spin.
unit: export OMP_WAIT_POLICY := passive
unit: export TVM_THREAD_POOL_SPIN_COUNT := 0
unit: SELECT ?= not gpu and not longer
unit: $(STAMP)  ## pytest
	$(BIN)/python -m pytest -n 2 --dist worksteal -m '$(SELECT)'

FUZZ_MINUTES ?= 10

fuzz: $(STAMP)  ## 500 random problems per op and order, then each generator for FUZZ_MINUTES
	$(BIN)/python -m tests.fuzz --count 500 --orders 1,2
	$(BIN)/python -m tests.fuzz.every --minutes $(FUZZ_MINUTES)

test-gpu:  ## where a GPU is: kernels on the device (python3 with TVM, PyTorch and pytest)
	$(PYTHON) -m pytest -m gpu tests/gpu

memcheck:  ## where a GPU is: a small set of offloaded convolutions under compute-sanitizer
	compute-sanitizer --tool memcheck --error-exitcode 1 $(PYTHON) -m tests.gpu.memcheck

bench: $(STAMP)  ## the CPU kernels against PyTorch
	$(BIN)/python -m benchmarks.cpu --quick

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
