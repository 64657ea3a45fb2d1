"""Paired runs on the toy, and benchmarks of speed, memory and graders.

`python -m benchmarks NAME` runs one (__main__.py); two notebooks import statistics.py.

    runs on the toy     direction.py trains rows x settings.py x seeds into results/direction.csv,
                        one line for each run; direction_tables.py prints the tables; tables.py
                        and statistics.py are for any study
    speed and memory    speed.py (measured), plan.py (estimates of memory)
    pictures of runs    curves.py, samples.py and picture.py, commands of their own
    graders             graders.py, a command of its own

The programs of finished studies have left; their pages in docs/results/ name a commit that has
them.
"""
