"""Studies of token credit, and benchmarks of speed, memory and graders.

`python -m benchmarks NAME` runs one (__main__.py); nothing outside this folder imports it.

    training studies    rows.py x settings.py x seeds -> runs.py -> results/NAME.csv, one line for
                        each run; comparisons.py prints differences; training.py and mean.py
    true credit         credit.py, of single tokens
    speed and memory    plan.py and simulation.py (estimates), gpu.py, rollouts.py
    graders             graders.py
    pictures of runs    curves.py and samples.py, commands of their own

To add a row, write a line in rows.py and name the row in a study.
"""
