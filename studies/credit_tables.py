"""Prints the tables in docs/results/credit.md from results/credit.csv.

A cell is the mean over base models of the mean over their batches, with the 95 % t-interval over
base models. A star marks a significant difference from the value in the table's title, by a
t-test over base models at 5 %, with Holm's correction over all rows in the column.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from studies.comparisons import counted, draw_differences, paired
from studies.gradients import reliability
from studies.places import STUDY
from studies.rows import IN_RANGE, ORACLE, PROXIES, STATIC
from studies.runs import Runs
from studies.statistics import half_width, holm, p_value
from studies.tables import print_table
from studies.training import FIRST_SEED, RATE

LEVEL = 0.05
SIZES = {"small": "128", "sum": "added up", "whole": "as one"}  # kind of batch -> title
IN_TABLES_ONLY = ("permuted", "permuted, held out", "all three")  # endings of row names

# One change at a time: the change, the row with it, the row without it.
CHANGES = {
    "γ fresh, not lagged": "fresh",
    "no refinement": "K = 0",
    "each side of mean 1": "side",
    "centroids held out": "held out",
}
CONTRASTS = {}
for change, form in CHANGES.items():
    for proxy, called in PROXIES.items():
        CONTRASTS[f"{called} proxy: {change}"] = (f"{proxy}, {form}", f"{proxy}, K = 1")
for when, form in (("lagged", "K = 1"), ("fresh", "fresh")):
    for proxy in ("topk", "exact", "surprise"):
        CONTRASTS[f"{when}: {PROXIES[proxy]}, not row proxy"] = (
            f"{proxy}, {form}",
            f"lm_head, {form}",
        )

# Rows that are also trained: the name in STATIC -> the name in results/methods.csv.
FORMS_OF_DELTA = {
    "lm_head, K = 1": "delta",
    "lm_head, fresh": "delta, fresh",
    "lm_head, K = 0": "delta, K = 0",
    "lm_head, side": "delta, side",
    "lm_head, held out": "delta, held out",
    "topk, K = 1": "topk",
    "topk, fresh": "topk, fresh",
    "topk, K = 0": "topk, K = 0",
    "exact, K = 1": "exact",
    "exact, fresh": "exact, fresh",
}
OTHERS = ("dapo", "forking_tokens", "random", IN_RANGE, ORACLE)  # the same name in both files

Cells = dict[str, np.ndarray]  # row -> a number for each base model


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    cells: Cells
    null: float | None = None  # the mean under the null hypothesis; None: no test
    digits: int = 3


class Study:
    """The CSV's lines by base model."""

    def __init__(self, lines: list[dict]):
        self.bases = sorted({line["base"] for line in lines})
        self.rows = [row for row in STATIC if row in {line["row"] for line in lines}]
        self.numbers = {}  # (row, base, kind of batch) -> lines
        for line in lines:
            kind = "small" if line["batch"].isdigit() else line["batch"]
            self.numbers.setdefault((line["row"], line["base"], kind), []).append(line)

    def of_base(self, row: str, base: int, column: str, kind: str) -> float:
        """A column's mean over the batches from one base, ignoring NaN."""
        values = [line[column] for line in self.numbers.get((row, base, kind), [])]
        known = [value for value in values if not math.isnan(value)]
        return float(np.mean(known)) if known else float("nan")

    def cells(self, column: str, kind: str = "small") -> Cells:
        """kind: small (the mean over batches), sum, whole or truth."""
        return {
            row: np.array([self.of_base(row, base, column, kind) for base in self.bases])
            for row in self.rows
        }

    def over_dapo(self, column: str, kind: str = "small", of: str = "cosine") -> Cells:
        """`column` minus DAPO's `of` for each base. DAPO itself has no cell."""
        dapo = self.cells(of, kind)["dapo"]
        return {
            row: values - dapo for row, values in self.cells(column, kind).items() if row != "dapo"
        }

    def contrasts(self, kind: str) -> Cells:
        """The differences between cosines in CONTRASTS for each base."""
        cells = self.cells("cosine", kind)
        known = {label: pair for label, pair in CONTRASTS.items() if set(pair) <= set(cells)}
        return {label: cells[a] - cells[b] for label, (a, b) in known.items()}


def cell_texts(column: Column) -> dict[str, str]:
    """`mean ± half-width`, starred if it differs significantly from the null. Skips NaN."""
    known = {row: x for row, x in column.cells.items() if not np.isnan(x).any()}
    stars = dict.fromkeys(known, "")
    if column.null is not None and known:
        adjusted = holm({row: p_value(values - column.null) for row, values in known.items()})
        stars = {row: "*" if p < LEVEL else "" for row, p in adjusted.items()}

    sign = "+" if column.null == 0 else ""
    texts = {}
    for row, values in known.items():
        mean = format(float(values.mean()), f"{sign}.{column.digits}f")
        texts[row] = f"{mean} ± {half_width(values):.{column.digits}f}{stars[row]}"
    return texts


# ---- the tables ----------------------------------------------------------------------------------


def print_tables(lines: list[dict]) -> None:
    """Print all tables. lines: the lines in results/credit.csv."""
    study = Study(lines)
    count = len(study.bases)
    print(f"\n{count} base models; cells: mean ± 95 % t-interval over them; *: Holm, 5 %\n")
    if count < 2:
        print("fewer than two base models: no intervals")
        return
    print_columns(
        "Decisive tokens, 128 responses: AUC (* against 0.5); share of pairs within 0.004; how "
        "much more a decisive token weighs (* against 0)",
        by_side(study, "small", "", ("AUC", "auc", 0.5), ("tied", "tied"), ("lift", "lift", 0)),
    )
    saturation = (("sd/γ", "spread", None, 1), ("saturated", "saturated", None, 2))
    print_columns(
        "Saturation: deviation of the margins over γ in use; share of scores below 0.01 or above "
        "0.99; at 128 responses, and all batches as one",
        by_side(study, "small", ", 128", *saturation)
        + by_side(study, "whole", ", all", *saturation),
    )
    print_directions(study)

    split = []
    for kind, size in SIZES.items():
        for part in ("means", "shape"):
            split.append(Column(f"{part}, {size}", study.over_dapo(f"cosine_{part}", kind), 0, 4))
    print_columns(
        "Split: cosine minus DAPO's of the sides' mean weights alone, and of the shape inside the "
        "sides alone (* against 0); mean weight of each side at 128",
        split + by_side(study, "small", "", ("weight", "mean")),
    )
    signs = []
    for kind, size in SIZES.items():
        signs.append(Column(size, study.cells("cosine_sign", kind)))
        gain = study.over_dapo("cosine_sign", kind, of="cosine_sign")
        signs.append(Column("- DAPO", gain, 0, 4))
    print_columns(
        "Adam's first step: cosine of sign(update) with the policy gradient's estimate (- DAPO: "
        "difference, * against 0); mean weight of each side at 128, tokens counting |A| (1 - p)",
        signs + by_side(study, "small", "", ("weight", "mass")),
    )
    contrasts = [Column(size, study.contrasts(kind), 0, 4) for kind, size in SIZES.items()]
    print_columns(
        "One thing at a time: difference of cosines with the policy gradient (* against 0)",
        contrasts,
        CONTRASTS,
    )
    of_truth = (
        ("AUC of size", "size_auc", 0.5),
        ("signed AUC", "signed_auc", 0.5),
        ("rank", "signed_rank", 0),
    )
    print_columns(
        "True advantages: AUC for |Q - V| beyond 2 standard errors, and for a Q - V with the sign "
        "of A beyond 2 standard errors (* against 0.5); rank correlation with a weight's target, "
        "(Q - V) / A (* against 0)",
        by_side(study, "truth", "", *of_truth),
    )


def print_columns(title: str, columns: Sequence[Column], names: Iterable[str] = STATIC) -> None:
    """Print a table with one line per name in `names` that has a cell, if any do."""
    texts = [cell_texts(column) for column in columns]
    lines = [[row, *(text.get(row, "-") for text in texts)] for row in names]
    lines = [line for line in lines if set(line[1:]) != {"-"}]
    if lines:
        print(f"{title}\n")
        print_table(["row", *(column.title for column in columns)], lines)


def by_side(study: Study, kind: str, size: str, *columns: tuple) -> list[Column]:
    """The columns for both sides.

    kind: of batch. size: the suffix for titles.
    columns: (title, name in the CSV, further arguments of Column).
    """
    found = []
    for side in ("pos", "neg"):
        for title, name, *test in columns:
            found.append(
                Column(f"{title} {side}{size}", study.cells(f"{name}_{side}", kind), *test)
            )
    return found


def print_directions(study: Study) -> None:
    """Print the cosines with the policy gradient: bias and variance."""
    # The cosine between the halves of the policy gradient estimate, for each base
    halves = [study.of_base("policy gradient", x, "agreement", "whole") for x in study.bases]
    known = np.array([reliability(x) for x in halves])  # [bases]
    expected = {}
    for row, values in study.cells("cosine", "sum").items():
        own = np.array([reliability(x) for x in study.cells("agreement", "sum")[row]])
        expected[row] = values / np.sqrt(known * own)
    gain = {row: x - expected["dapo"] for row, x in expected.items() if row != "dapo"}

    print(
        "policy gradient: cosine between the two halves of its estimate, by base: "
        f"{', '.join(f'{x:.3f}' for x in halves)}; a cosine with the estimate is "
        f"{', '.join(f'{x:.3f}' for x in np.sqrt(known))} of that with the truth\n"
    )
    columns = []
    for kind, title in SIZES.items():
        columns.append(Column(title, study.cells("cosine", kind)))
        columns.append(Column("- DAPO", study.over_dapo("cosine", kind), 0, 4))
    columns += [Column("expected", expected), Column("- DAPO", gain, 0, 4)]
    columns.append(Column("halves agree", study.cells("agreement", "sum")))
    print_columns(
        "Cosine with the policy gradient's estimate (- DAPO: difference, * against 0): one batch "
        "of 128; all batches' updates added up; all as one batch; and of the expected update with "
        "the truth, the two noises divided out",
        columns,
    )


def print_correlations(lines: list[dict], runs: Runs) -> None:
    """Print how well two of an update's cosines predict a row's mean training reward.

    Prints Pearson correlations over rows. lines: from results/credit.csv. runs: from
    results/methods.csv, which must contain each row's runs on the counted seeds.
    """
    study = Study(lines)
    of = counted(runs, [job for job in runs if job.rate == RATE and job.seed >= FIRST_SEED])
    table = []
    for label, rows in (
        ("all rows in both studies", FORMS_OF_DELTA | dict(zip(OTHERS, OTHERS, strict=True))),
        ("forms of DelTA", FORMS_OF_DELTA),
    ):
        rows = {row: name for row, name in rows.items() if row in study.rows}
        if len(rows) < 3:
            return
        trained = [paired(of, STUDY, name, "dapo").mean() for name in rows.values()]
        cells = [label, len(rows)]
        for column in ("cosine", "cosine_sign"):
            static = study.cells(column)
            found = np.corrcoef([static[row].mean() for row in rows], trained)[0, 1]
            cells.append(f"{found:.2f}")
        table.append(cells)
    print("Correlation over rows with the mean training reward, at 128 responses\n")
    print_table(["rows", "number", "cosine of the update", "cosine of its sign"], table)


# ---- the plot ------------------------------------------------------------------------------------


def draw_split(lines: list[dict], path: Path) -> None:
    """Save a PNG of how much each row's update, and its two parts, gain over DAPO's cosine.

    lines: from results/credit.csv, for at least two base models. Rows shown only in tables are left
    out.
    """
    study = Study(lines)
    parts = {
        "sides' mean weights alone": "cosine_means",
        "shape inside the sides alone": "cosine_shape",
        "both: the update": "cosine",
    }
    groups = {}
    for label, column in parts.items():
        cells = study.over_dapo(column)
        groups[label] = {row: x for row, x in cells.items() if not row.endswith(IN_TABLES_ONLY)}
    title = "How near an update of 128 responses is to the policy gradient"
    what = f"cosine minus DAPO's, {len(study.bases)} base models (95 % interval)"
    draw_differences(groups, title, path, what)
