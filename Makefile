# make demo: watch Gaussians become pictures. make test: everything that is checked. Both set themselves up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test lint clean

demo: $(INSTALLED)
	$(BIN)/tsplat demo --out demo

# Kernels run in the interpreter in a process of their own, as Triton decides at import whether to compile.
test: lint
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -m interpreter -n 2
	$(BIN)/python -m pytest -m "not interpreter" -n 2

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
