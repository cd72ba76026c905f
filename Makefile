# Two commands a new user needs: `make demo` and `make test`. Both set up all they need in .venv.

VENV ?= .venv
PYTHON ?= python3
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test clean

demo: $(VENV)/.installed
	$(VENV)/bin/kernelarc demo

test: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/pytest -n 2 -m "not alone"
	$(VENV)/bin/pytest -m alone

# torch first and by its exact version, so that pip never weighs a newer build against the pinned one.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist build
