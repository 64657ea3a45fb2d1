"""Studies of token credit: how it changes a method's reward, and which tokens receive it.

    row     a way to weight tokens: an entry in ROWS (rows.py). Most rows only set flags for
            train.py: "K = 2": Row("--K 2"). Add a new row to STATIC.
    place   a task, its base model, and the first counted seed of each study: an entry in
            SETTINGS (places.py): "k16": Setting(k=16, noise=0.05, seeds={"confirm": 21})
    run     a row trained at a place, with a learning rate and a seed (running.py), and evaluated
            on held-out problems: a line in results/NAME.csv (runs.py)
    study   a function NAME(args). A line for it in WHERE (bench.py) enables `python bench.py NAME`.
            `pilot` picks each row's learning rate on pilot seeds, unless the rate is fixed.
            `completed` trains the missing runs, `print_differences` tests the differences, and
            `draw_differences` draws them.
    resume  run the same command again. Runs in the CSV are not repeated. A run whose row or place
            has changed is refused.

Two files contain the training studies: surprise.py (the zero-mean proxy) and training.py (all
others). credit_study.py needs no training. It weights single batches (credit.py) with every row in
STATIC, compares the updates with the policy gradient (gradients.py), and compares the weights with
the tokens' true advantages (truth.py, credit_tables.py).
"""
