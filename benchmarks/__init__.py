"""Benches of speed, memory and graders. `python bench.py NAME` runs one, `--help` lists them.

train.py and evaluate.py need nothing from here. stages.py: the stages of a step, each callable
separately. scripted.py: responses of preset lengths. timing.py: seconds. curves.py: overlaid runs
of train.py, a separate command.
"""
