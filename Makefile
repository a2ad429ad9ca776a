# `make eval` shows the tool at work, `make test` checks everything, `make fuzz` looks for input that nobody thought of.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXAMPLES ?= 3000
SEED := $(or $(SEED),$(shell date +%s))
STAMP := $(VENV)/.installed

.PHONY: eval test fuzz clean

eval: $(STAMP)
	$(BIN)/vase eval --recipe tiny-reasoner

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

# The command that is printed finds the same again.
fuzz: $(STAMP)
	VASE_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -n 2 tests/fuzz --hypothesis-seed=$(SEED)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist
