# What people type. Every target shares one .venv, which .make/set_up.py makes when it is missing,
# half made, moved, or older than what pyproject.toml says; otherwise that costs a few hundredths of a second.
PY := .venv/bin/python
ARGS ?=
# Side by side, a test each: llama.cpp has one thread in tests (how many at once says tests/conftest.py). Those
# of a file stay together as long as they can (worksteal), since many share a server or a model.
PYTEST = $(PY) -m pytest -n auto --dist worksteal

# Tests start hundreds of Pythons: what they import is compiled once, into __pycache__ (make clean removes it).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help chat test test-all gpu-test mutants check format map clean ready

help:
	@echo "make chat      chat with a small real model (downloads 98 MB once; offline: the embedded pair)"
	@echo "make test      run the tests, in a few minutes (ARGS='-k sampling' selects some)"
	@echo "make test-all  run all tests, including the slow ones"
	@echo "make gpu-test  run the graphics card tests on a software Vulkan device (builds for 12 minutes first)"
	@echo "make mutants   change the core in 7,000 ways, and show which fail no test (hours; ARGS='edgespec.core.text*')"
	@echo "make check     lint, format and types"
	@echo "make format    format the code"
	@echo "make map       write docs/map.md, every module in a sentence"
	@echo "make clean     remove .venv and the caches"

ready:
	@$(PY) -I -S .make/ready.py 2>/dev/null || sh .make/with_python .make/set_up.py

chat: ready
	@[ -e .venv/starter ] || $(PY) -P .make/first_model.py
	@.venv/bin/edgespec chat $(ARGS)

test: ready
	@$(PYTEST) $(ARGS)

test-all: ready
	@$(PYTEST) -m "slow or not slow" $(ARGS)

gpu-test: ready
	@$(PY) .make/gpu_test.py $(ARGS)

# hours on 2 cores: give it a part of the names, or stop it and start it again; mutants/ keeps what was found
mutants: ready
	@$(PY) -m pip install -q mutmut
	@$(PY) -m mutmut run $(ARGS)
	@$(PY) -m mutmut results

check: ready
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) .make/map.py --check

format: ready
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

map: ready
	@$(PY) .make/map.py

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache build dist mutants
	find edgespec tui models tests .make -name __pycache__ -type d -prune -exec rm -rf {} +
