# Two commands on a fresh machine: `make demo` and `make test`. Python 3.11+ is all that they need.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint install clean-venv

install: $(STAMP)

$(STAMP): requirements/lock.txt pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements/lock.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $(STAMP)

# Each demo writes to a folder of its own: a used one is refused, and nothing of yours is deleted.
demo: $(STAMP)
	$(BIN)/grpo run configs/examples/cpu.toml --set output.root='"$(CURDIR)/runs/demo-$(shell date +%Y%m%d-%H%M%S)"'

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow"

test-all: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean-venv:
	rm -rf $(VENV)
