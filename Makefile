# make test         the fast tests, style and types, in an environment made from requirements.lock
# make test-all     the slow tests too; two hours and a half
# make test-campaigns, test-notebooks, test-wheel: what test-all leaves out, many trainings compared, the notebooks, the
#                   wheel built; one to two hours, minutes, a minute
# make campaigns    searches for rare failures, hours: fits of both precisions interleaved in one process, numbers by two
#                   ways, nasty fits, files damaged on purpose, fits killed and resumed, ten thousand fits in one process
# make test-matrix  the fast tests on every Python 3.11-3.13 found, with the newest and the lowest allowed dependencies
#                   (ENDS=lowest: with these alone)
# make demo         guides compared on a real table, the step function; figures and netCDF files in demo/
# make bench        milliseconds of training steps, beside code by hand and what bench-peers installed; some minutes
# make bench-peers  GPflow, GPflux, GPyTorch, LightGBM and NGBoost in .venv-peers, for benchmarks alone: 2-3 GB
# make tables       cells of docs/tables.md, tables-classes.md and tables-missing.md that have no row yet, DATA=... the
#                   folder of the tables, SETS=... METHODS=... SPLITS=... choose; hours for all, and it may be stopped
# make docs         the site of docs/, in site/, with warnings as errors; open site/index.html, or `make docs-serve`
# make docs-serve   the site at http://127.0.0.1:8000
# make lock         requirements.lock, requirements-docs.lock anew from pyproject.toml (UPGRADE=--upgrade: newest versions)
# PYTHON=... chooses the interpreter, WORKERS=... the number of test processes, PYTEST_ARGS=... adds to pytest,
# BENCH_ARGS=... to the bench.

VENV    := .venv
PY      := $(VENV)/bin/python
STAMP   := $(VENV)/.installed
DOCS    := .venv-docs
PYTHON  ?= python3.11 python3.12 python3.13 python3
WORKERS ?= 2
UPGRADE ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
ENDS    ?= newest lowest
PROBE   := import sys, venv, ensurepip; assert sys.version_info >= (3, 11)
# uv, if it is not on the path, comes into an environment of its own
FIND_UV := uv=$$(command -v uv) || { \
    for candidate in $(PYTHON); do \
      if $$candidate -c '$(PROBE)' >/dev/null 2>&1; then $$candidate -m venv .venv-lock; break; fi; \
    done; \
    .venv-lock/bin/python -m pip --disable-pip-version-check install --quiet uv && uv=.venv-lock/bin/uv; }
PIP     := -m pip --disable-pip-version-check install --quiet
# a file stays with one process: its tests share what they have compiled
# a process of tests for each core: the threads of OpenBLAS beside them wait for each other, a hundredfold
export OPENBLAS_NUM_THREADS ?= 1
PYTEST  := -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := test
.PHONY: env lint test test-all campaigns test-campaigns test-notebooks test-wheel test-matrix demo bench bench-peers tables docs docs-serve lock clean

env: $(STAMP)

# A pyenv shim may stand on the path without a Python behind it, so every candidate is tried before it is taken.
$(STAMP): requirements.lock pyproject.toml
	@set -e; \
	if ! $(PY) -c '$(PROBE)' >/dev/null 2>&1; then \
	  echo "setting up the environment in $(VENV), once: 1-3 minutes"; \
	  found=; \
	  for candidate in $(PYTHON); do \
	    if $$candidate -c '$(PROBE)' >/dev/null 2>&1; then found=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "no Python 3.11 or later with venv among: $(PYTHON). Install one, or name it: make PYTHON=/path/to/python" >&2; \
	    exit 1; \
	  fi; \
	  $$found -m venv --clear $(VENV); \
	else \
	  echo "updating the environment in $(VENV)"; \
	fi; \
	{ $(PY) $(PIP) --require-hashes --no-deps -r requirements.lock \
	  && $(PY) $(PIP) --no-deps --no-build-isolation -e . ; } > $(VENV)/install.log 2>&1 \
	|| { tail -n 30 $(VENV)/install.log >&2; \
	     echo "installing failed; the whole log is $(VENV)/install.log" >&2; exit 1; }; \
	touch $@; \
	echo "environment ready: $$($(PY) --version)"

# the zoo stands beside the package and is installed inside it: layers are checked on a copy laid out as installed
lint: $(STAMP)
	@$(PY) -m ruff check --quiet --output-format concise .
	@$(PY) -m ruff format --quiet --check . || { echo 'style: run $(PY) -m ruff format .' >&2; exit 1; }
	@$(PY) -m mypy --no-error-summary ppl_dgp models
	@rm -rf build/layers build/layers.tmp && mkdir -p build && cp -R ppl_dgp build/layers.tmp && cp -R models build/layers.tmp/models \
	  && mkdir build/layers && mv build/layers.tmp build/layers/ppl_dgp
	@cd build/layers && ../../$(VENV)/bin/lint-imports --config ../../pyproject.toml --no-cache --no-logo > ../layers.log 2>&1 \
	  || { cat ../layers.log; exit 1; }
	@echo "style, types and layers: clean"

test: lint
	@$(PY) $(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-all: lint
	@$(PY) $(PYTEST) -m "not campaign and not notebook and not wheel" $(PYTEST_ARGS)

campaigns: $(STAMP)
	@$(PY) -W ignore -m benchmarks.precisions
	@$(PY) -W ignore -m benchmarks.differential
	@$(PY) -W ignore -m benchmarks.hostile
	@$(PY) -W ignore -m benchmarks.strangers
	@$(PY) -W ignore -m benchmarks.kills --kills 200
	@$(PY) -W ignore -m benchmarks.plateau --fits 10000 --programs 50

test-campaigns: $(STAMP)
	@$(PY) $(PYTEST) -m campaign $(PYTEST_ARGS)

test-notebooks: $(STAMP)
	@$(PY) $(PYTEST) -m notebook $(PYTEST_ARGS)

test-wheel: $(STAMP)
	@$(PY) -m pytest -q -m wheel $(PYTEST_ARGS) tests/test_house.py tests/test_packaging.py

# the lowest versions that wheels exist of: each Python began with other ones
test-matrix:
	@$(FIND_UV); ran=; failed=; \
	for version in 3.11 3.12 3.13; do \
	  found=; \
	  probe='$(PROBE); assert "%d.%d" % sys.version_info[:2] == "'$$version'"'; \
	  for candidate in python$$version "$$(pyenv root 2>/dev/null)"/versions/$$version.*[0-9]/bin/python; do \
	    if $$candidate -c "$$probe" >/dev/null 2>&1; then found=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then echo "Python $$version: not found, skipped"; continue; fi; \
	  for end in $(ENDS); do \
	    ran="$$ran $$version ($$end)"; env=.venv-$$version-$$end; python=$$env/bin/python; \
	    case $$end in lowest) settings="--resolution lowest-direct --no-build";; *) settings=--upgrade;; esac; \
	    echo "Python $$version: installing the $$end allowed dependencies in $$env, 1-3 minutes"; \
	    $$python -c "$$probe" >/dev/null 2>&1 || $$found -m venv --clear $$env; \
	    if { $$uv pip compile --quiet $$settings --python $$python --extra dev pyproject.toml -o $$env/versions.txt \
	      && $$uv pip sync --python $$python $$env/versions.txt \
	      && $$uv pip install --python $$python --no-deps --no-build-isolation -e . ; } > $$env/install.log 2>&1; then \
	      $$python -c 'from importlib.metadata import version as v; print("Python '$$version' with", \
	        ", ".join(p + " " + v(p) for p in ("jax", "numpyro", "arviz", "numpy")))'; \
	      $$python $(PYTEST) -m "not slow" $(PYTEST_ARGS) || failed="$$failed $$version ($$end)"; \
	    else tail -n 30 $$env/install.log >&2; failed="$$failed $$version ($$end)"; fi; \
	  done; \
	done; \
	if [ -z "$$ran" ]; then echo "no Python 3.11, 3.12 or 3.13 found" >&2; exit 1; fi; \
	if [ -n "$$failed" ]; then echo "failed on Python:$$failed" >&2; exit 1; fi; \
	echo "passed on Python:$$ran"

demo: $(STAMP)
	@mkdir -p demo
	@$(PY) -m benchmarks.demo

bench: $(STAMP)
	@$(PY) -m benchmarks.speed $(BENCH_ARGS)

tables: $(STAMP)
	@test -n "$(DATA)" || { echo "make tables: name the folder of the tables, DATA=..." >&2; exit 2; }
	@OPENBLAS_NUM_THREADS=1 $(PY) -m benchmarks.tables --data "$(DATA)" $(if $(SETS),--sets $(SETS)) \
	  $(if $(METHODS),--methods $(METHODS)) $(if $(SPLITS),--splits $(SPLITS))
	@$(PY) -m benchmarks.tables_page
	@$(PY) -m benchmarks.tables_classes_page
	@$(PY) -m benchmarks.tables_missing_page

bench-peers: .venv-peers/.installed .venv-gpjax/.installed

# GPJax and TensorFlow want different versions of NumPy
.venv-peers/.installed: benchmarks/peers.txt
.venv-gpjax/.installed: benchmarks/gpjax.txt
.venv-peers/.installed .venv-gpjax/.installed:
	@found=; \
	for candidate in $(PYTHON); do \
	  if $$candidate -c '$(PROBE)' >/dev/null 2>&1; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "no Python 3.11 or later with venv among: $(PYTHON)" >&2; exit 1; fi; \
	echo "setting up $<, some minutes"; \
	$$found -m venv --clear $(@D) && $(@D)/bin/python $(PIP) -r $< && touch $@

# an environment of its own, without JAX: the package is read there, not imported. The command line's help is its own.
docs: $(STAMP) $(DOCS)/.installed
	@mkdir -p build && $(PY) -m typer ppl_dgp.cli.app utils docs --name ppl-dgp > build/command-line.md
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict
	@echo "the site is in site/"

docs-serve: docs
	@$(DOCS)/bin/python -m http.server --bind 127.0.0.1 --directory site 8000

$(DOCS)/.installed: requirements-docs.lock
	@found=; \
	for candidate in $(PYTHON); do \
	  if $$candidate -c '$(PROBE)' >/dev/null 2>&1; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "no Python 3.11 or later with venv among: $(PYTHON)" >&2; exit 1; fi; \
	echo "setting up $(DOCS), once: a minute"; \
	$$found -m venv --clear $(DOCS) && $(DOCS)/bin/python $(PIP) --require-hashes --no-deps -r $< && touch $@

lock:
	@$(FIND_UV); \
	compile="$$uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url"; \
	$$compile --custom-compile-command "make lock" $(UPGRADE) --extra dev pyproject.toml -o requirements.lock && \
	$$compile --custom-compile-command "make lock" $(UPGRADE) --group docs -o requirements-docs.lock

clean:
	rm -rf .venv .venv-* build dist site ./*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
