"""Speed, memory and graders; `python bench.py NAME` runs a bench, `--help` says what each is.

What train.py or evaluate.py needs is not here. stages.py has the stages of a step, each to be
called alone; scripted.py has responses whose lengths are known before; timing.py measures
seconds; curves.py overlays runs of train.py and is called by itself.
"""
