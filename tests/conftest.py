"""Hooks for pytest: what is imported where, and which tests run first."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
FORKING = ["test_evaluate.py", "test_run.py", "test_ranks.py", "test_notebooks.py"]


def pytest_configure(config):
    """With -n, the process that deals tests to the others does not import torch: it takes long."""
    if not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("toy_fixtures")


def pytest_collection_modifyitems(items):
    """The tests that need forked.py's server come first, so that with -n 2 one process starts it.

    They are the longest too, and the longest of them come first: short ones fill all cores at the
    end.
    """
    items.sort(key=lambda item: -FORKING.index(item.path.name) if item.path.name in FORKING else 1)
