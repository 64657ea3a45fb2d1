"""The tables of results/credit.csv, as docs/results/credit.md has them.

A cell is the mean over base models, each of which is the mean over its batches, with the 95 %
t-interval over base models. A star: told apart from the value that the table's first line names at
5 % by a t-test over base models, after Holm's correction for all rows of the column.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from studies.comparisons import draw_differences
from studies.gradients import reliability
from studies.rows import PROXIES, STATIC
from studies.statistics import half_width, holm, p_value
from studies.tables import table_line

LEVEL = 0.05
SIZES = {"small": "128", "sum": "added up", "whole": "as one"}  # kind of batch -> title
IN_TABLES_ONLY = ("permuted", "permuted, held out", "all three")  # ends of rows' names

# One thing at a time: what is changed, the row with it, the row without it.
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

Cells = dict[str, np.ndarray]  # row -> a number for each base model


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    cells: Cells
    null: float | None = None  # what a star tells the mean apart from; None: no test
    digits: int = 3


def print_tables(lines: list[dict]) -> None:
    """Print all tables; lines: of results/credit.csv."""
    study = Study(lines)
    count = len(study.bases)
    print(f"\n{count} base models; cells: mean ± 95 % t-interval over them; *: Holm, 5 %\n")
    if count < 2:
        print("no interval over fewer than two base models")
        return
    print_by_side(
        study,
        "Decisive tokens, 128 responses: AUC (* against 0.5); share of pairs within 0.004; how "
        "much more a decisive token weighs (* against 0)",
        {"small": ""},
        [("AUC", "auc", 0.5, 3), ("tied", "tied", None, 3), ("lift", "lift", 0, 3)],
    )
    print_by_side(
        study,
        "Saturation: deviation of the margins over γ in use; share of scores below 0.01 or above "
        "0.99; at 128 responses, and all batches as one",
        {"small": ", 128", "whole": ", all"},
        [("sd/γ", "spread", None, 1), ("saturated", "saturated", None, 2)],
    )
    print_directions(study)
    print_split(study)
    print_signs(study)
    print_contrasts(study)
    print_by_side(
        study,
        "True advantages: AUC for |Q - V| beyond 2 standard errors (* against 0.5); rank "
        "correlation with |Q - V| and with (Q - V) sign(A) (* against 0)",
        {"truth": ""},
        [("AUC", "size_auc", 0.5, 3), ("rank", "size_rank", 0, 3)]
        + [("signed", "signed_rank", 0, 3)],
    )


class Study:
    """The lines of the CSV, by base model."""

    def __init__(self, lines: list[dict]):
        self.bases = sorted({line["base"] for line in lines})
        self.rows = [row for row in STATIC if row in {line["row"] for line in lines}]
        self.numbers = {}  # (row, base, kind of batch) -> lines
        for line in lines:
            kind = "small" if line["batch"].isdigit() else line["batch"]
            self.numbers.setdefault((line["row"], line["base"], kind), []).append(line)

    def of_base(self, row: str, base: int, column: str, kind: str) -> float:
        """The mean over the batches of a base; those without the number do not count."""
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
        """`column` minus DAPO's `of`, base by base; no cell for DAPO itself."""
        dapo = self.cells(of, kind)["dapo"]
        return {
            row: values - dapo for row, values in self.cells(column, kind).items() if row != "dapo"
        }


def print_table(title: str, columns: Sequence[Column], names: Iterable[str] = STATIC) -> None:
    """A table with a line for each of `names` that has a cell; nothing without such a line."""
    texts = [cell_texts(column) for column in columns]
    if not any(texts):
        return
    print(f"{title}\n")
    print(table_line(["row", *(column.title for column in columns)]))
    print("|---" * (len(columns) + 1) + "|")
    for row in names:
        cells = [text.get(row, "-") for text in texts]
        if any(cell != "-" for cell in cells):
            print(table_line([row, *cells]))
    print()


def cell_texts(column: Column) -> dict[str, str]:
    """`mean ± half-width`, starred where it is told apart from the null; none without numbers."""
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


def print_by_side(
    study: Study,
    title: str,
    kinds: dict[str, str],
    columns: list[tuple[str, str, float | None, int]],
) -> None:
    """A table with the columns for each size of batch and each side.

    kinds: of batches, and how the columns' titles end. columns: title, name in the CSV, null,
    digits.
    """
    found = []
    for kind, size in kinds.items():
        for side in ("pos", "neg"):
            for called, name, null, digits in columns:
                cells = study.cells(f"{name}_{side}", kind)
                found.append(Column(f"{called} {side}{size}", cells, null, digits))
    print_table(title, found)


def print_directions(study: Study) -> None:
    """Cosines with the policy gradient: bias and variance."""
    of_estimate = halves_of_estimate(study)
    known = np.array([reliability(x) for x in of_estimate])  # [bases]
    expected = {}
    for row, values in study.cells("cosine", "sum").items():
        own = np.array([reliability(x) for x in study.cells("agreement", "sum")[row]])
        expected[row] = values / np.sqrt(known * own)
    gain = {row: x - expected["dapo"] for row, x in expected.items() if row != "dapo"}

    print(
        "policy gradient: cosine between the two halves of its estimate, by base: "
        f"{', '.join(f'{x:.3f}' for x in of_estimate)}; a cosine with the estimate is "
        f"{', '.join(f'{x:.3f}' for x in np.sqrt(known))} of that with the truth\n"
    )
    print_table(
        "Cosine with the policy gradient's estimate (- DAPO: difference, * against 0): one batch "
        "of 128; all batches' updates added up; all as one batch; and of the expected update with "
        "the truth, the two noises divided out",
        [
            Column("128", study.cells("cosine")),
            Column("- DAPO", study.over_dapo("cosine"), 0, 4),
            Column("added up", study.cells("cosine", "sum")),
            Column("- DAPO", study.over_dapo("cosine", "sum"), 0, 4),
            Column("as one", study.cells("cosine", "whole")),
            Column("- DAPO", study.over_dapo("cosine", "whole"), 0, 4),
            Column("expected", expected),
            Column("- DAPO", gain, 0, 4),
            Column("halves agree", study.cells("agreement", "sum")),
        ],
    )


def halves_of_estimate(study: Study) -> list[float]:
    """The cosine between the halves of the policy gradient's estimate, for each base."""
    row = "policy gradient"
    return [study.of_base(row, base, "agreement", "whole") for base in study.bases]


def print_split(study: Study) -> None:
    """What the two parts of an update do to its cosine."""
    columns = []
    for kind, size in SIZES.items():
        for part in ("means", "shape"):
            cells = study.over_dapo(f"cosine_{part}", kind)
            columns.append(Column(f"{part}, {size}", cells, null=0, digits=4))
    means = [Column(f"weight {s}", study.cells(f"mean_{s}")) for s in ("pos", "neg")]
    print_table(
        "Split: cosine minus DAPO's of the sides' mean weights alone, and of the shape inside the "
        "sides alone (* against 0); mean weight of each side at 128",
        [*columns, *means],
    )


def print_signs(study: Study) -> None:
    """Adam's first step, and what the sides weigh where there is a gradient."""
    columns = []
    for kind, size in SIZES.items():
        columns.append(Column(size, study.cells("cosine_sign", kind)))
        gain = study.over_dapo("cosine_sign", kind, of="cosine_sign")
        columns.append(Column("- DAPO", gain, 0, 4))
    columns += [Column(f"weight {s}", study.cells(f"mass_{s}")) for s in ("pos", "neg")]
    print_table(
        "Adam's first step: cosine of sign(update) with the policy gradient's estimate (- DAPO: "
        "difference, * against 0); mean weight of each side at 128, tokens counting |A| (1 - p)",
        columns,
    )


def print_contrasts(study: Study) -> None:
    """One thing at a time: what it does to the cosine with the policy gradient."""
    columns = []
    known = {label: rows for label, rows in CONTRASTS.items() if set(rows) <= set(study.rows)}
    for kind, size in SIZES.items():
        cells = study.cells("cosine", kind)
        differences = {label: cells[a] - cells[b] for label, (a, b) in known.items()}
        columns.append(Column(size, differences, null=0, digits=4))
    print_table(
        "One thing at a time: difference of cosines with the policy gradient (* against 0)",
        columns,
        known,
    )


# ---- the picture ---------------------------------------------------------------------------------


def draw_split(lines: list[dict], path: Path) -> None:
    """What a row's update, and the two parts of it, gain on DAPO's cosine; a PNG at `path`.

    lines: of results/credit.csv, of two base models or more. Without the rows that only the tables
    need.
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
