"""Studies of token credit, and benchmarks of speed, memory and graders.

`python -m benchmarks NAME` runs one (__main__.py); nothing outside this folder imports it.

    training studies   rows x settings x seeds -> results/NAME.csv, one line for each finished run.
        rows.py         a row: a way to weight tokens, mostly flags of train.py
        settings.py     a setting: a task, a base model, a run's length, the first counted seed
        runs.py         the runner; the same command runs only what is missing from the CSV
        comparisons.py  differences between rows on the same seeds: tables and a picture
        training.py     `make_train`, `methods`, and `compare` for any CSV of runs
        mean.py         `mean`
    single batches      credit.py: the tokens' true credit, the rows' weights, the policy gradient
    speed and memory    plan.py, simulation.py (estimates), gpu.py, rollouts.py, scripted.py
    graders             graders.py
    pictures of runs    curves.py and samples.py, commands of their own

To add a row, write a line in rows.py and name the row in a study.
"""
