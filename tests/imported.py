"""Imports for the server in tests/forked.py: the scripts, and the modules they import late.

A module missing from this list only costs time.
"""

import IPython.display  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import nbformat  # noqa: F401
import torch.distributed.checkpoint  # noqa: F401
import torch.distributed.run  # noqa: F401
import torch.profiler  # noqa: F401

import evaluate  # noqa: F401
import toy  # noqa: F401
import train  # noqa: F401
