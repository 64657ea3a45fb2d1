"""The measurements behind README.md and RESULTS.md; `python bench.py NAME` runs them.

What train.py or evaluate.py needs is not here.

seed_study.py, curve_study.py                       training on the toy, over seeds
method_study.py, confirm_study.py, noise_study.py   which rows beat DAPO, and where that holds
study_runs.py       the rows and settings of these studies, and a run of a row
study_jobs.py       such runs two at a time, kept in a CSV file
comparisons.py      differences between rows: tables and pictures
credit.py           which tokens a method singles out, on one batch; credit_study.py over many, and
                    credit_tables.py its tables
gradients.py        the updates that token weights make, split, and beside the policy gradient
ranking.py          AUC, ties and rank correlations
truth.py            the true advantage of single tokens, by branching
overhead.py, rollouts.py, logprobs.py, scaling.py   speed and memory of the parts, on a CPU
gpu.py              speed and memory of the parts, on a GPU
trl_step.py         a step of ours against one of TRL's
trl_delta.py        README's DelTA inside TRL's trainer, held against ours
stages.py           the stages of a step, each to be called alone
scripted.py         responses whose lengths are known before
timing.py           seconds, alternating, and the growth of a process's peak
graders.py          verify.py against another grader
soups.py            verify.py on random token soups
memory.py           what Qwen3-0.6B to 14B need, by counting
statistics.py       means with intervals, tests, power
tables.py           lines of a table, and CSV files
"""
