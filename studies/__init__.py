"""The causal study: does token credit decide what a method earns, and where does it land?

    row     a way to weigh tokens: a line of STATIC in rows.py, flags of train.py in the simplest
            case: "K = 2": Row("--K 2")
    place   a task, its base model, and the first counted seed of each study there: a line of
            SETTINGS in runs.py: "k16": Setting(k=16, noise=0.05, seeds={"confirm": 21})
    study   a function NAME(args) in training.py: `pilot` picks each row's learning rate on seeds
            that do not count, `completed` runs the rows at every place whose seeds name the study,
            and `print_differences` tests them. A line in bench.py's WHERE makes it
            `python bench.py NAME`
    run     two runs at a time; each is a line of results/NAME.csv as soon as it has ended
    resume  the same command: a run that the file holds is not run again, and one whose row or place
            has changed since is refused
    draw    `draw_differences` (comparisons.py), beside the CSV

curves.py keeps runs step by step, and surprise.py those of the proxy of mean zero, examined on
held-out problems. credit_study.py needs no training: it weighs single batches (credit.py) by every
row of STATIC, and compares the updates with the policy gradient (gradients.py) and the weights with
the true advantages of tokens (truth.py); credit_tables.py prints it.
"""
