"""What DelTA gives to the tokens of real text: the tables of a CSV that is complete.

`python -m benchmarks credit` at commit e9d0cb0 sampled the batches and measured them.
docs/results/real.md has the flags and the results.
"""

import re
from pathlib import Path

import pandas as pd

from benchmarks.tables import print_frame, read_csv
from infra.errors import UserError

COLUMNS = ("batch", "pool", "rule", "side", "statistic", "value")
KINDS = {  # kind of token -> what its text matches, without spaces around it; the first one counts
    "end": r"<\|.*\|>|</s>|<end_of_turn>|<eos>",
    "space": r"",
    "digits": r"[\d.,]*\d[\d.,]*",
    "operator": r"[-+*/=<>×÷·%^]+",
    "LaTeX": r"\\.*|frac|times|text|boxed|div|cdot|left|right",
    "word": r"[^\W\d_]+'?[^\W\d_]*",
    "punctuation": r".*",
}


def kind_of(text: str) -> str:
    """The kind of a token, such as `digits` for ` 12`."""
    stripped = text.strip()
    return next(kind for kind, form in KINDS.items() if re.fullmatch(form, stripped, re.DOTALL))


def credit(args) -> None:
    """Print all tables. Raises UserError for flags."""
    if args.flags:
        raise UserError("credit prints its CSV and takes no flags: gain measures a model of yours")
    for name, lines in read_csv(Path(args.csv), COLUMNS).groupby("batch", sort=False):
        print_tables(name, lines)


def print_tables(name: str, lines: pd.DataFrame) -> None:
    """Print one batch's tables: facts, the first order, then a row for each rule and side."""
    is_fact = lines["rule"].isna()
    facts = zip(lines["statistic"][is_fact], lines["value"][is_fact], strict=True)
    print(f"**{name}**: " + ", ".join(f"{fact} {value:g}" for fact, value in facts))
    rules = lines[~is_fact].rename(columns={"pool": "pooled over"})
    tables = rules.groupby([rules["rule"] == "first order", "side"], sort=False)
    for (_, side), own in tables:
        own = own.rename(columns={"rule": f"{side}: rule"})
        index = [f"{side}: rule", "pooled over"]
        print_frame(own.pivot_table("value", index, "statistic", sort=False))
