"""Measures which token weights help and why, and the speed and memory of runs; draws pictures.

`python -m benchmarks NAME` runs a study (__main__.py); curves.py and samples.py are commands of
their own. docs/help.md and docs/cost.md have the results.
"""
