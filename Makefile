# make setup   builds .venv once, and again when pyproject.toml or constraints.txt change
# make run     the tour: three models trained, one page with pictures; 4 to 9 minutes, after the installation
# make test    10 to 12 minutes on 2 quiet cores of a server
# make docs    the documentation, in site/; 2 to 3 minutes
# make prove   everything: about three hours on 2 cores, of which what each member costs takes half of one
#
# To set on the command line:
# PYTHON=python3.12   the interpreter that .venv is made from
# PY=/path/to/python  an environment that has what pyproject.toml asks for; nothing is installed then
# JOBS=8              tests at a time

PYTHON ?= python3
JOBS ?= 2

ifndef PY
PY := .venv/bin/python
READY := .venv/ready
RENDERER := .venv/renderer
endif

# compiled files are kept even where the environment says not to: each process that a test starts would compile all again
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) -q tests

.PHONY: setup run test prove docs

setup: $(READY)

run: $(READY)
	$(PY) -m kinformer.cli tour --overwrite

test: $(READY)
	$(PYTEST)

prove: $(READY)
	KINFORMER_PROVE=1 $(PYTEST)

docs: $(READY) $(RENDERER)
	$(PY) -m docs.build
	@echo "the documentation is in site/index.html"

# Sphinx and its theme, which only the documentation needs
.venv/renderer: pyproject.toml constraints.txt | .venv/ready
	.venv/bin/python -m pip install -c constraints.txt -e '.[docs]'
	touch $@

# torch first and by its exact version: the build that this machine's index offers is the one that all else meets.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kinformer needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install "$$(grep '^torch==' constraints.txt)"
	.venv/bin/python -m pip install -c constraints.txt -e '.[dev,datasets,faiss,hf,rl,tensorboard,tokenizers,wandb]'
	touch $@
