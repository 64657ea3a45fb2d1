# Each target does its own setup. ARGS are passed to train.py: make train ARGS="--method dapo --seed 1"
PYTHON ?= python3
BIN = .venv/bin

train: .venv/.installed
	$(BIN)/python train.py $(ARGS)

test: .venv/.installed
	$(BIN)/python -c 'import xdist' 2> /dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check pytest-xdist==3.8.0
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: .venv/.installed
	test -x $(BIN)/ruff || $(BIN)/python -m pip install --quiet --disable-pip-version-check ruff==0.17.6
	$(BIN)/ruff format --check
	$(BIN)/ruff check

gpu: .venv/.installed
	$(BIN)/python bench.py gpu --json gpu.json

notebooks: .venv/.installed
	cd notebooks && for n in *.ipynb; do ../$(BIN)/jupyter nbconvert --to notebook --execute --inplace $$n || exit 1; done

.venv/.installed: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

.PHONY: train test lint gpu notebooks
