"""What real text shows, benchmarks of speed and memory, and pictures of runs.

`python -m benchmarks NAME` runs one (__main__.py); two notebooks import statistics.py.

    real text           credit.py (what DelTA gives to tokens), branches.py (what they deserved);
                        tables.py and statistics.py are for any study
    speed and memory    speed.py (measured), plan.py (estimates of memory)
    pictures of runs    curves.py, samples.py and picture.py, commands of their own

The programs of finished studies have left; docs/results/earlier.md names the commits.
"""
