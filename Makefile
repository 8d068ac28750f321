# make demo: watch Gaussians become pictures. make test: everything that is checked. Both set themselves up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test lint fuzz mutants scoreboard clean

demo: $(INSTALLED)
	$(BIN)/tsplat demo --out demo

# Kernels run in the interpreter in a process of their own, as Triton decides at import whether to compile.
test: lint
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -m interpreter -n 2
	$(BIN)/python -m pytest -m "not interpreter" -n 2

# Random scenes with new seeds; what fails is saved under tests/cases.
MINUTES ?= 5
fuzz: $(INSTALLED)
	$(BIN)/python -m tests.tools.fuzz --minutes $(MINUTES)

# Small bugs seeded into copies of the package; tests should catch them all.
mutants: $(INSTALLED)
	$(BIN)/python -m tests.tools.mutants

# Half an hour to an hour; writes docs/reliability.md.
scoreboard: $(INSTALLED)
	$(BIN)/python -m tests.tools.fuzz --long --seed 1
	TRITON_INTERPRET=1 $(BIN)/python -m tests.tools.fuzz --long --seed 1 --backend triton
	$(BIN)/python -m tests.tools.mutants --write
	$(BIN)/python -m tests.tools.scoreboard

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo
