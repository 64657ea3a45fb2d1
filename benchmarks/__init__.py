"""The measurements behind README.md and RESULTS.md, one file each; `python bench.py NAME` runs them."""
