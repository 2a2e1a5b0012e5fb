# make demo | test | lint | docs   each makes .venv when it is missing, and again installs when pyproject.toml changed
# make demo ARGS=--once            ARGS goes to the command: specrouter demo, or pytest
# make docs ARGS=serve             show the pages of build/docs/html while they are written
# make test PYTHON=python3.12      another Python for .venv

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(VENV)/.installed-demo
	@$(BIN)/specrouter demo $(ARGS)

test: $(VENV)/.installed-test
ifeq ($(strip $(ARGS)),)
	@# Four at a time on two cores: most of them wait for sockets.
	@$(BIN)/python -m pytest --numprocesses 4 -m 'not llama_server'
	@# Two files at a time: each has servers of its own, of which mostly one works.
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m llama_server
else
	@$(BIN)/python -m pytest $(ARGS)
endif

lint: $(VENV)/.installed-test
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

docs: $(VENV)/.installed-docs
	@$(BIN)/python docs/site/build.py $(ARGS)

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@echo "Installing specrouter[$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no $(PYTHON) on PATH. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "specrouter needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
	    "Name a newer one: make PYTHON=python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt install python3-venv" >&2; \
	  exit 1; }
