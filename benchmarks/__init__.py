"""What real text shows, which weights help on the toy, speed and memory, and pictures of runs.

`python -m benchmarks NAME` runs a study (__main__.py); curves.py, samples.py and picture.py are
commands of their own. docs/results/earlier.md names the commits of the finished studies.
"""
