"""Hooks for pytest, which choose what each process imports, and which tests run first."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
FORKING = ["test_evaluate.py", "test_run.py", "test_ranks.py", "test_notebooks.py"]


def pytest_configure(config):
    """With -n, the process that hands out the tests does not import torch, which takes long."""
    if not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("toy_fixtures")


def pytest_collection_modifyitems(items):
    """Sort the tests that need forked.py's server to the front: with -n 2, one process starts it.

    These are also the longest tests, and the longest of them come first, so that short ones keep
    all cores busy at the end.
    """
    items.sort(key=lambda item: -FORKING.index(item.path.name) if item.path.name in FORKING else 1)
