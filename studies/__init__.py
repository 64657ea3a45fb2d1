"""The causal study: does token credit decide what a method earns, and where does it land?

    row     a way to weigh tokens: a line of ROWS in rows.py, flags of train.py in the simplest case
    place   a task, its base model, and the first seed of each study there: a line of SETTINGS in
            runs.py. No seed serves two studies
    study   a function NAME(args) in training.py: `pilot` picks each row's learning rate on seeds
            that do not count, `complete` runs the counted jobs, `print_differences` tests the rows
            against each other. A line in bench.py's WHERE makes it `python bench.py NAME`
    run     two runs at a time; each is a line of results/NAME.csv as soon as it has ended
    resume  the same command: a run that the file holds is not run again, and one whose row or place
            has changed since is refused
    draw    `draw_differences` (comparisons.py), beside the CSV

curves.py keeps runs step by step. credit_study.py needs no training: it weighs single batches
(credit.py) by every row of STATIC, and compares the updates with the policy gradient (gradients.py)
and the weights with the true advantages of tokens (truth.py); credit_tables.py prints it.
"""
