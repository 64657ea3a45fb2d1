"""The studies: how token credit changes what a method earns, and which tokens get the credit.

    row     a way to weigh tokens: a line of STATIC in rows.py. In the simplest case it holds flags
            of train.py: "K = 2": Row("--K 2")
    place   a task, its base model, and the first counted seed of each study there: a line of
            SETTINGS in places.py: "k16": Setting(k=16, noise=0.05, seeds={"confirm": 21})
    run     a row at a place, at a learning rate, on a seed (running.py), evaluated on held-out
            problems: a line of results/NAME.csv (runs.py)
    study   a function NAME(args), made `python bench.py NAME` by a line in bench.py's WHERE.
            `pilot` picks each row's learning rate on pilot seeds, unless the rate is given.
            `completed` runs the missing runs, `print_differences` tests the differences, and
            `draw_differences` draws them
    resume  the same command: runs in the file are not repeated, and a run whose row or place has
            changed is refused

Two files hold studies of training: surprise.py (the proxy of mean zero) and training.py (all
others). credit_study.py needs no training. It weighs single batches (credit.py) by every row of
STATIC, compares the updates with the policy gradient (gradients.py) and the weights with the true
advantages of tokens (truth.py, credit_tables.py).
"""
