# `make run` is the main job, `make test` all tests of behaviour, `make lab` the notebooks in JupyterLab.
# Each makes .venv and installs what the system lacks on first need.
.PHONY: run test test-all browser lint lab env torch serve-env bench rehearsals notebooks clean

PY := .venv/bin/python
OUT ?= out/run

run: env
	.venv/bin/labkit run --out $(OUT)

# Two processes share the files: on two cores that is nearly twice as fast, since most of a test is tracing and compiling.
test: env lint browser
	$(PY) -m pytest -m "not slow" --numprocesses 2 --dist loadfile --nbval-lax tests notebooks

test-all: env lint browser
	$(PY) -m pytest --nbval-lax tests notebooks

browser: # without it the browser tests are skipped, and say so
	-@scripts/system_packages.sh chromium

lint: env
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

lab: env
	.venv/bin/jupyter lab notebooks

env:
	@scripts/system_packages.sh iverilog
	@scripts/make_env.sh

torch:
	@scripts/make_env.sh torch

serve-env: # vLLM for CPUs in .venv-serve, for the tests that ask it
	@scripts/make_serve_env.sh

bench: env
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(PY) $$script || exit 1; done

rehearsals: env # compiles those of data/rehearsals again, and says what differs
	$(PY) scripts/make_rehearsals.py

notebooks: env
	@scripts/system_packages.sh chromium
	$(PY) scripts/build_notebooks.py --force

clean: # results in out/ and runs/ stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
