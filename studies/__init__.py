"""The causal study: does token credit decide what a method earns, and where does it land?

    row     a way to weigh tokens: a line of STATIC in rows.py, flags of train.py in the simplest
            case: "K = 2": Row("--K 2")
    place   a task, its base model, and the first counted seed of each study there: a line of
            SETTINGS in places.py: "k16": Setting(k=16, noise=0.05, seeds={"confirm": 21})
    run     a row at a place, at a learning rate, on a seed (running.py), examined on held-out
            problems: a line of results/NAME.csv (runs.py)
    study   a function NAME(args): `pilot` picks each row's learning rate on seeds that do not
            count, where it is not given; `completed` runs what the file lacks;
            `print_differences` tests it, and `draw_differences` draws it. A line in bench.py's
            WHERE makes it `python bench.py NAME`
    resume  the same command: a run that the file holds is not run again, and one whose row or place
            has changed since is refused

Three files of studies: training.py (where training sharpens), surprise.py (the proxy of mean zero)
and one_rate.py (without a pilot). credit_study.py needs no training: it weighs single batches
(credit.py) by every row of STATIC, and compares the updates with the policy gradient (gradients.py)
and the weights with the true advantages of tokens (truth.py); credit_tables.py prints it.
"""
