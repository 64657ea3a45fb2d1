# `make train`, `make test` and `make notebooks` each do all their own set-up. ARGS go to train.py: make train ARGS="--method dapo --seed 1"
PYTHON ?= python3

train: .venv/.installed
	.venv/bin/python train.py $(ARGS)

test: .venv/.installed
	.venv/bin/python -m pytest -q tests

notebooks: .venv/.installed
	cd notebooks && for n in *.ipynb; do ../.venv/bin/jupyter nbconvert --to notebook --execute --inplace $$n || exit 1; done

.venv/.installed: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

.PHONY: train test notebooks
