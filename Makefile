PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
COMMANDS := $(VENV)/commands
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup
# Triton decides at import whether to interpret kernels, so these few tests need a process of their own.
INTERPRET = TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/kernels -m
MINUTES ?= 5
SEQUENCES ?= 1000
TRAINERS ?= 20
# The oldest versions that pyproject.toml allows, and the newest.
VERSIONS ?= torch-2.9.1 triton-3.6.0 triton-3.9.0
# What depends on them: the compiler for CPUs and what it makes of all kernels; code for GPUs, and the instructions that
# the emulator knows; operators, torch.compile, autograd and process groups.
VERSIONED := tests/triton_cpu tests/gpu_driver $(wildcard tests/kernels/test_*.py) tests/ops tests/test_torch_integration.py \
	$(patsubst %,tests/runtime/test_%.py,autograd backend operators process_group) \
	$(patsubst %,tests/stages/test_%.py,exchange sparse_gradients) tests/passes \
	tests/strategies/test_base.py tests/benchmarks/test_dynamic_cost.py tests/emulator/test_instructions.py
EMULATED := sm_80-ptx sm_90-ptx sm_120-ptx sm_80-sass sm_90-sass gfx942-amdgcn gfx1100-amdgcn
COUNT ?= 300
# Fewer scenes than usual do not replace recorded results.
RECORD := $(if $(filter 300,$(COUNT)),--record)

# Without bytecode, every process compiles PyTorch again, and pytest every test: 10 s for each of its workers.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo quick test check repeated test-versions lint docs compile fuzz emulate interpreter mutants scoreboard dist clean

help: ## list the targets (default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(COMMANDS) ## fit Gaussians to a procedural scene and write images and a turntable to demo/
	$(BIN)/tsplat demo --out demo

quick: lint ## lint, types and the fast tests: about 100 seconds on two cores
	$(PYTEST) -m "not slow and not interpreter and not gpu"

test: $(INSTALLED) ## lint, types and tests: a quarter of an hour on two cores, less with kernels in the cache
	$(MAKE) -j2 -Otarget --no-print-directory lint interpreter
	$(PYTEST) -m "not long and not repeated and not interpreter"

# Many of them wait for other processes, which leaves a core idle.
check: $(INSTALLED) ## long tests: of ranks, signals, the site, random scenes
	$(INTERPRET) "interpreter and long"
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "long and not repeated and not interpreter"

repeated: $(INSTALLED) ## all other cases of slow tests, of which make test and make check run one
	$(PYTEST) -m "repeated and not interpreter"

interpreter: $(INSTALLED)
	$(INTERPRET) "interpreter and not long"

# What is found first in PYTHONPATH takes the place of the environment's own. A folder torch-X has PyTorch X with the Triton
# that it requires. Triton 3.9 warns where the variable is not set, and tests take warnings as errors.
test-versions: export TRITON_DEFAULT_FP_FUSION := 1
test-versions: $(addprefix $(VENV)/,$(VERSIONS)) ## run what depends on PyTorch and Triton with VERSIONS="torch-2.9.1 triton-3.6.0 triton-3.9.0"
	@set -e; for version in $(VERSIONS); do \
		export PYTHONPATH=$(abspath $(VENV))/$$version TRITON_CACHE_DIR=$(abspath $(VENV))/$$version-cache; \
		$(BIN)/python -c "import torch, triton; print('== torch', torch.__version__, 'triton', triton.__version__)"; \
		$(PYTEST) $(VERSIONED); $(INTERPRET) interpreter; \
	done

# The interpreter of Triton up to 3.6 converts arrays of one entry to numbers, which NumPy 2.4 no longer does.
$(VENV)/triton-%: | $(INSTALLED)
	$(BIN)/python -m pip install -q --no-deps --target $@ triton==$* numpy==2.3.5

$(VENV)/torch-%: | $(INSTALLED)
	$(BIN)/python -m pip install -q --target $@ torch==$* numpy==2.3.5

lint: $(INSTALLED) ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED) ## build the documentation site, docs/_build/html/index.html; runs the examples
	$(BIN)/python -m sphinx -W --keep-going -q -c docs/site -d docs/_build/doctrees . docs/_build/html
	@echo docs/_build/html/index.html

fuzz: $(INSTALLED) ## check random scenes for MINUTES=5, failures are saved under tests/cases; SEQUENCES=1000 of calls; and TRAINERS=20
	$(BIN)/python -m tests.tools.fuzz --minutes $(MINUTES)
	$(BIN)/python -m tests.tools.call_sequences --count $(SEQUENCES)
	$(BIN)/python -m tests.tools.interrupted_trainers --count $(TRAINERS)

compile: $(INSTALLED) ## compile every variant of the kernels for GPUs: no spills, instructions within budgets
	TSPLAT_COMPILE=all $(PYTEST) tests/kernels/test_compile.py

emulate: $(INSTALLED) ## execute kernels compiled for GPUs on an emulator: hours, or less with ARCH=sm_80 CODE=sass COUNT=9
	@set -e; for target in $(if $(ARCH),$(ARCH)-$(CODE),$(EMULATED)); do \
		export EMULATE=$${target%-*} EMULATE_CODE=$${target#*-}; \
		echo "== $$target: tests marked gpu"; $(PYTEST) -p tests.emulator.plugin -m gpu; \
		echo "== $$target: the emulator's own tests"; $(PYTEST) tests/emulator; \
		echo "== $$target: $(COUNT) random scenes"; $(BIN)/python -m tests.emulator.fuzz --count $(COUNT) $(RECORD); \
	done

mutants: $(INSTALLED) ## seed small bugs into copies of the package and check that the tests catch them
	$(BIN)/python -m tests.tools.mutants

scoreboard: $(INSTALLED) ## run fuzz on this CPU and mutants at length, and write docs/reliability.md: up to an hour
	$(BIN)/python -m tests.tools.fuzz --long --seed 1
	TSPLAT_CPU=x86-64-v3 $(BIN)/python -m tests.tools.fuzz --long --seed 1
	$(BIN)/python -m tests.tools.fuzz --long --seed 1 --backend torch
	TRITON_INTERPRET=1 $(BIN)/python -m tests.tools.fuzz --long --seed 1
	$(BIN)/python -m tests.triton_cpu.sweep_math exp2 log2
	$(BIN)/python -m tests.tools.mutants --write
	$(BIN)/python -m tests.tools.scoreboard

dist: $(INSTALLED) ## build the wheel and the source distribution in dist/, and check them in an empty environment
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[release]'
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m tests.tools.distributions dist

clean: ## remove the virtual environment, the demo and the documentation site
	rm -rf $(VENV) demo docs/_build

# Not quietly: pip's progress tells how far the downloads are.
$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing PyTorch, and what tests and the site need, into $(VENV): some minutes and gigabytes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e '.[dev]'
	touch $(COMMANDS) $@

# The commands and the viewer, without what tests and the site need.
$(COMMANDS): pyproject.toml constraints.txt
	@echo "installing PyTorch, the commands and the viewer into $(VENV): some minutes and gigabytes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e '.[train,viewer]'
	touch $@
