# Each target does its own setup. ARGS are passed to train.py: make train ARGS="--method dapo --seed 1"
PYTHON ?= python3
BIN = .venv/bin
QUIET = --quiet --disable-pip-version-check

train: .venv/.installed
	$(BIN)/python train.py $(ARGS)

test: .venv/.installed
	$(BIN)/python -c 'import xdist' 2> /dev/null || $(BIN)/python -m pip install $(QUIET) pytest-xdist==3.8.0
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: .venv/.installed
	test -x $(BIN)/ruff || $(BIN)/python -m pip install $(QUIET) ruff==0.17.6
	$(BIN)/ruff format --check
	$(BIN)/ruff check

# MODEL is a folder or a hub id, DATA a file of problems or a hub id. COLUMN=question names DATA's column of problems.
real: .venv/.installed
	test -n "$(MODEL)" && test -n "$(DATA)"
	$(BIN)/python -m pytest -q --durations 0 -o tmp_path_retention_policy=failed tests/real

engines: .venv-engines/.installed
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-engines/bin/python -m pytest -q tests/engines

notebooks: .venv/.installed
	cd notebooks && for n in *.ipynb; do ../$(BIN)/jupyter nbconvert --to notebook --execute --inplace $$n || exit 1; done

.venv/.installed: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(QUIET) -r requirements.txt
	touch $@

# This installs the real vLLM and TRL for a CPU. The packages that it removes are CUDA builds, which cannot be imported here.
.venv-engines/.installed: tests/engines/requirements.txt
	$(PYTHON) -m venv .venv-engines
	.venv-engines/bin/python -m pip install $(QUIET) --retries 1 --no-deps --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
	.venv-engines/bin/python -m pip install $(QUIET) -r $<
	.venv-engines/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

.PHONY: train test lint real engines notebooks
