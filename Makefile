# All targets use one environment for each interpreter. It is created on first use, and updated when pyproject.toml changes.
PYTHON ?=
VENV ?= .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
ARGS ?=
BASE ?= HEAD
DEMO ?= demo-results

export PYTHON
bin := $(VENV)/bin
sources := torchx_kfp components pipelines packages tests dev docs
# What `make test` leaves out: each has a target of its own. dev/tiers.py says what it is about.
apart := docker or cluster or browser or torch or ax or oldest or load or mlflow
gate := not ($(apart) or examples)
# The files that have a mark: collecting all tests takes longer than running most of these.
having = $(shell grep -rlE 'mark\.($(1))' --include='test_*.py' tests)

.DEFAULT_GOAL := help
.PHONY: help demo test test-changed test-containers test-cluster test-browser test-torch test-ax test-oldest test-examples test-load test-mlflow test-lowest test-newest test-package test-kfp durations mutants ci ci-all lint format types goldens docs pictures benchmarks measures wheel clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-25s%s\n", $$1, $$2}'
	@echo
	@echo '  PYTHON=python3.13       use another interpreter, in a separate environment (VENV: its folder)'
	@echo '  ARGS="-k tracker -x"    pass arguments to pytest'

demo: $(VENV)/.ready ## run the digits pipeline locally
	@mkdir -p $(DEMO)
	$(bin)/torchx-kfp compile pipelines/digits.py -o $(DEMO)/digits.yaml
	$(bin)/torchx-kfp run $(DEMO)/digits.yaml --tracker-base $(DEMO)/tracker

test: $(VENV)/.ready ## run the tests, except those with targets below (containers, a cluster, a browser, other versions, gigabytes)
	@echo 'Some minutes on two cores; make test-changed runs only what a change needs.'
	$(bin)/python -m pytest -m '$(gate)' $(ARGS)

test-changed: $(VENV)/.ready ## run the tests that the changes since BASE need (default: uncommitted changes)
	$(bin)/python -m pytest $$($(bin)/python -m dev.changed $(BASE)) $(ARGS)

test-containers: $(VENV)/.ready ## run the tests in containers; starts a Docker engine if none is running (Debian, root)
	dev/ci/with-docker $(bin)/python -m pytest -m docker $(or $(ARGS),tests/containers)

test-cluster: $(VENV)/.ready ## run the tests on a Kubernetes control plane; builds it on first use (Go; Debian, root)
	dev/ci/with-cluster $(bin)/python -m pytest -m 'cluster and not torch' $(or $(ARGS),tests/kubernetes)

test-browser: $(VENV)/.ready ## run the tests in Chromium, and install it if it is missing (Debian, root)
	dev/ci/with-browser $(bin)/python -m pytest -m browser $(or $(ARGS),$(call having,browser))

test-torch: $(VENV)-torch/.ready ## run the tests that train with PyTorch, in a separate environment (2.5 GB), also on a cluster
	TORCHX_KFP_REQUIRE_TORCH=1 dev/ci/with-cluster $(VENV)-torch/bin/python -m pytest -m torch $(or $(ARGS),$(call having,torch))

test-ax: $(VENV)-torch/.ready ## run the tests with Ax, in the same environment
	TORCHX_KFP_REQUIRE_AX=1 $(VENV)-torch/bin/python -m pytest -n 0 -m ax tests/hpo/ax $(ARGS)

test-oldest: $(VENV)/.ready ## run the carried programs with the oldest supported Python, 3.8
	$(bin)/python -m pytest -m oldest $(or $(ARGS),tests/contract/carried tests/common)

test-examples: $(VENV)/.ready ## run the examples that train models with scikit-learn
	$(bin)/python -m pytest -m examples $(or $(ARGS),tests/cases tests/components)

test-load: $(VENV)/.ready ## run many processes against one store, and kill some
	$(bin)/python -m pytest -m load $(or $(ARGS),$(call having,load))

test-mlflow: $(VENV)/.ready ## run the tests that record in an MLflow server
	$(bin)/python -m pytest -m mlflow $(or $(ARGS),$(call having,mlflow))

test-lowest: $(VENV)-lowest/.ready ## run the tests that depend on versions with the lowest that pyproject.toml allows
	$(VENV)-lowest/bin/python -m pytest -n 2 -m '(versions or lowest) and not usual and not ($(apart))' $(or $(ARGS),$(call having,versions|lowest|newest))

test-newest: $(VENV)-newest/.ready ## run the tests that depend on versions with the newest kfp and torchx's nightly, also in containers
	dev/ci/with-docker $(VENV)-newest/bin/python -m pytest -n 2 -m '(versions or newest) and not usual and not s3' $(or $(ARGS),$(call having,versions|lowest|newest))

test-package: $(VENV)/.ready ## check the distributions as an index would, and install the wheel with each extra in an empty environment
	@VENV=$(VENV) dev/ci/package

test-kfp: $(VENV)/.ready ## compare pipelines on a KFP host with local runs: HOST=URL TRACKER_BASE=URL IMAGE=NAME (see tests/conformance/README.md)
	@$(if $(and $(HOST),$(TRACKER_BASE),$(IMAGE)),,echo 'make test-kfp needs HOST=URL TRACKER_BASE=URL IMAGE=NAME: see tests/conformance/README.md' >&2; exit 2)
	$(foreach each,HOST TRACKER_BASE IMAGE SHELL_IMAGE ENGINES KEEP,TORCHX_KFP_SUITE_$(each)='$($(each))') \
	    $(bin)/python -m pytest tests/conformance -n $(or $(N),8) --dist load --timeout 3600 $(ARGS)

durations: $(VENV)/.ready ## run the tests of make test, and write the duration of each file, by which they are ordered
	$(bin)/python -m pytest -q -m '$(gate)' --record-durations $(ARGS)

mutants: $(VENV)/.ready ## rerun the mutants that tests killed before (hours); ARGS=make adds new ones
	$(bin)/python -m dev.mutants $(or $(ARGS),check)

ci: ## run what a submission must pass: style, types, documentation, tests, and the tiers that the change needs
	@VENV=$(VENV) bash .ci/run

ci-all: ## run all tiers as well, as each night, and note those that pass in tests/passed.json
	@VENV=$(VENV) bash .ci/run all

lint: $(VENV)/.ready ## check style, formatting and imports
	$(bin)/ruff check $(sources)
	$(bin)/ruff format --check $(sources)
	$(bin)/lint-imports --no-logo

format: $(VENV)/.ready ## format all files
	$(bin)/ruff check --fix $(sources)
	$(bin)/ruff format $(sources)

types: $(VENV)/.ready ## check types (mypy, strict)
	$(bin)/mypy

goldens: $(VENV)/.ready ## rewrite generated files: compiled examples, the programs that commands carry, and the reference
	$(bin)/python -m dev.carry
	$(bin)/python -m dev.reference
	$(bin)/python -m tests.pipelines.regenerate

docs: $(VENV)/.ready ## build the documentation, in docs/_build; warnings are errors
	$(bin)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet --jobs auto docs docs/_build

pictures: $(VENV)/.ready ## retake the documentation's pictures of runs and reports (needs Chromium)
	dev/ci/with-browser $(bin)/python dev/pictures.py

benchmarks: $(VENV)/.ready ## print the figures in the docs, and those of peers; ARGS="start size" names cases
	$(bin)/python -m dev.benchmarks $(ARGS)

measures: $(VENV)/.ready ## count lines and modules, and the tests that know internals; ARGS names revisions to compare with
	@$(bin)/python -m dev.measures $(ARGS)

wheel: $(VENV)/.ready ## build the wheel, in dist/
	@rm -rf build  # setuptools would package modules that no longer exist
	$(bin)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@rm -rf build

clean: ## remove environments, caches and results
	rm -rf .venv .venv-* $(DEMO) build dist docs/_build *.egg-info .cache .hypothesis .mypy_cache .import_linter_cache .pytest_cache .ruff_cache local_outputs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml dev/ci/venv
	@echo 'Creating $(VENV) (once; less than a minute on most machines).'
	@dev/ci/venv $(VENV)
	@touch $@

$(VENV)-lowest/.ready $(VENV)-newest/.ready $(VENV)-torch/.ready: $(VENV)-%/.ready: pyproject.toml dev/ci/venv
	@VENV=$(VENV) dev/ci/venv $(VENV)-$* $*
	@touch $@
