"""Benchmarks of speed, memory and graders. `python bench.py NAME` runs one, `--help` lists all.

train.py and evaluate.py import nothing from here. stages.py: the stages of a step, each callable
separately. scripted.py: responses with preset lengths. timing.py: timed calls. curves.py: plots of
runs, a separate command.
"""
