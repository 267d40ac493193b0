# Every target sets itself up: a virtual environment in .venv, then what it needs.
PYTHON ?= python3
VENV := .venv
SITE := .venv-docs
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt 2>/dev/null | cksum | cut -d' ' -f1)

# The oracle of the tests is PyTorch's CPU build, without gigabytes of CUDA, where its index answers.
TORCH_CPU := https://download.pytorch.org/whl/cpu
TORCH_ARGS = $(shell $(PYTHON) -c "import urllib.request as u; u.urlopen('$(TORCH_CPU)/torch/', timeout=3)" 2>/dev/null && echo "--extra-index-url $(TORCH_CPU)")

# TVM's thread pool takes half of the logical processors on x86, for SMT; the package takes what the
# process may use.  The tests' oracle, PyTorch, uses the same number.
export OMP_NUM_THREADS ?= $(shell nproc)

.PHONY: demo test test-all coverage docs fuzz lint types unit test-gpu memcheck bench clean help

help:
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV): TVM, PyTorch, what the tests need; once, about 3 GB on disk and two minutes or more."
	$(PYTHON) -m venv $(VENV)
	@# Of 14,700 files a quarter is ever imported, and compiled as it is: pip would take a minute for all.
	$(PIP) install --no-compile $(TORCH_ARGS) --constraint constraints.txt --editable '.[dev,torch,notebooks]'
	@rm -f $(VENV)/.installed-*
	@touch $@

demo: $(STAMP)  ## train ResNet-50 on the CPU, show and check every convolution
	$(BIN)/python -m relay_wgrad train resnet50 --layout NHWC

test: lint  ## lint, types and the tests of each day, without a GPU
	@# Types are one process's work, and so are the ends of the tests.
	$(MAKE) --jobs 2 unit types

test-all: lint types coverage docs  ## before a release: every test without a GPU, coverage, the site, planted faults
	$(BIN)/python -m tests.planted

coverage: export COVERAGE_CORE = $(shell $(PYTHON) -c "import sys; print('sysmon' if sys.version_info >= (3, 12) else 'ctrace')")
coverage:  ## every test without a GPU, and the lines that none of them runs
	$(MAKE) unit SELECT="not gpu" REPORT="--cov --cov-report=term-missing:skip-covered"

lint: $(STAMP)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

# Two tests at a time share the cores: threads that wait for work must not spin.
unit: export OMP_WAIT_POLICY := passive
unit: export TVM_THREAD_POOL_SPIN_COUNT := 0
unit: SELECT ?= not gpu and not longer
unit: $(STAMP)  ## the tests of each day alone
	@# A hundred processes import the package: they keep what they compile of it.
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 2 --dist worksteal --durations 20 -m '$(SELECT)' $(REPORT)

# Sphinx has an environment of its own, so that no other target waits for it.
$(SITE)/.installed: docs/requirements.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip --quiet --disable-pip-version-check install --requirement docs/requirements.txt
	@touch $@

docs: $(SITE)/.installed  ## the pages as a site in build/site, each link and reference checked
	$(SITE)/bin/sphinx-build -q -W --keep-going -b html docs build/site

FUZZ_MINUTES ?= 10

fuzz: $(STAMP)  ## 500 random problems per op and order, then each generator for FUZZ_MINUTES
	$(BIN)/python -m tests.fuzz --count 500 --orders 1,2
	$(BIN)/python -m tests.fuzz.every --minutes $(FUZZ_MINUTES)

test-gpu:  ## where a GPU is: kernels on the device (python3 with TVM, PyTorch and pytest)
	$(PYTHON) -m pytest -m gpu tests/gpu

memcheck:  ## where a GPU is: offloaded convolutions and kernels of our own under compute-sanitizer
	compute-sanitizer --tool memcheck --error-exitcode 1 $(PYTHON) -m tests.gpu.memcheck
	compute-sanitizer --tool racecheck --error-exitcode 1 $(PYTHON) -m tests.gpu.memcheck ordered

bench: $(STAMP)  ## the CPU kernels against PyTorch, in under five minutes
	$(BIN)/python -m benchmarks cpu convolutions --quick

clean:  ## remove what these targets have made
	rm -rf $(VENV) $(SITE) build dist *.egg-info .coverage .coverage.* .hypothesis .pytest_cache .mypy_cache .ruff_cache
