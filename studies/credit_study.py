"""Which tokens get the credit, and how the credit changes the update (`credit`).

For each base model (chains of 12, rare errors), every row in rows.STATIC weights batches of 16
prompts x 8 responses. The study measures how well the weights separate decisive tokens, how close
the update Σ ρ A v and its sign are to the policy gradient, and how saturated DelTA's scores are. It
then weights the same responses as one batch of 2,048, which shows the cost of estimating a method's
statistics from a small batch. If results/truth.csv (`bench.py truth`) contains the true advantages
Q - V for a base's tokens, the weights on those responses are compared with Q - V.

results/credit.csv has one line per base, row and batch: 0 to 15, `sum` (their updates added
up), `whole` (all 16 as one batch) and `truth`. Bases in the file are not measured again.
The study takes an estimated 45 minutes on two cores, one base per core, and about 5 GB of memory.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import toy
from infra.errors import UserError
from studies import truth
from studies.credit import (
    GradedBatch,
    batch,
    gradient_estimate,
    packed_tokens,
    singled_out,
    weighed,
)
from studies.credit_tables import draw_split, print_correlations, print_tables
from studies.gradients import PARTS, cosine, parts_of, side_directions, side_means
from studies.ranking import auc, rank_correlation
from studies.rows import STATIC
from studies.running import fill
from studies.runs import finished_runs
from studies.tables import read_csv


def by_side(*names: str) -> list[str]:
    """The column names for both sides."""
    return [f"{name}_{side}" for side in ("pos", "neg") for name in names]


COLUMNS = [
    *("base", "row", "batch", "tokens"),
    *by_side("auc", "tied", "lift", "mean", "spread", "saturated"),
    *("cosine", "cosine_shape", "cosine_means", "agreement"),
    *by_side("size_auc", "signed_auc", "signed_rank"),
    *("cosine_sign", *by_side("mass")),
]
POLICY_GRADIENT = "policy gradient"  # a separate row: agreement between the estimate's halves


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement."""

    bases: tuple[int, ...] = (0, 1, 2, 3, 4)  # build seeds
    batches: int = 16  # per base; even, because two halves are compared
    prompts: int = 16  # per batch
    group: int = 8  # responses to each prompt
    gradient_prompts: int = 128  # in each half of the policy gradient estimate
    gradient_group: int = 64
    truth: Path = Path("results/truth.csv")
    trained: Path = Path("results/methods.csv")


def credit(args, sizes: Sizes = Sizes()) -> list[dict]:
    """Which tokens the weights favour, and how close an update is to the policy gradient.

    Takes an estimated 45 minutes. Fills --csv, prints means over bases with 95 % intervals, and
    draws the differences from DAPO.
    """
    path = Path(args.csv)
    before = lines_before(path)
    measured_rows = {line["row"] for line in before}
    missing = [row for row in STATIC if row not in measured_rows]
    if before and missing:
        raise UserError(
            f"{path} is from an earlier version and lacks {'; '.join(missing)}: move it away "
            "to measure all bases again"
        )
    finished = {line["base"] for line in before}
    bases = [base for base in sizes.bases if base not in finished]
    fill(path, COLUMNS, partial(lines_of_base, sizes), bases, "bases")
    lines = lines_before(path)
    print_tables(lines)
    if sizes.trained.exists():
        print_correlations(lines, finished_runs(sizes.trained))
    if len(sizes.bases) > 1:  # an interval needs two bases
        draw_split(lines, path.with_suffix(".png"))
    return lines


def lines_before(path: Path) -> list[dict]:
    """The lines from an earlier run, with cells parsed as numbers."""
    found = read_csv(path, COLUMNS)
    for line in found:
        if line["row"] not in (*STATIC, POLICY_GRADIENT):
            raise UserError(f"{path} has a row {line['row']!r} not in this study: remove it")
        line["base"] = int(line["base"])
        for name in COLUMNS[3:]:
            line[name] = float(line[name])
    return found


def line_of(base: int, row: str, batch_name: int | str, **numbers: float) -> dict:
    """A CSV line: floats to five digits, NaN for missing numbers."""
    line = dict.fromkeys(COLUMNS, float("nan"))
    line |= {"base": base, "row": row, "batch": str(batch_name)}
    for name, value in numbers.items():
        line[name] = round(float(value), 5)
    return line


# ---- one base ------------------------------------------------------------------------------------


def lines_of_base(sizes: Sizes, base: int) -> list[dict]:
    """All lines for one base."""
    torch.set_num_threads(1)  # a base built here depends on the number of threads
    lm, tokenizer = truth.load(base)
    halves = []  # two independent estimates of the policy gradient, [D] each
    for half in (0, 1):
        seed = 10 * base + half
        problems = toy.problems(sizes.gradient_prompts, seed=6000 + seed, k=truth.K)
        group = sizes.gradient_group
        halves.append(gradient_estimate(lm, tokenizer, problems, group, 500 + seed, truth.LIMIT))
    gradient = halves[0] + halves[1]
    lines = [line_of(base, POLICY_GRADIENT, "whole", agreement=cosine(*halves))]

    batches = []
    sums = [0.0, 0.0]  # updates from every other batch, [rows, 3, D] (PARTS)
    for number in range(sizes.batches):
        seed = 100 * base + number
        problems = toy.problems(sizes.prompts, seed=8000 + seed, k=truth.K)
        graded = batch(lm, tokenizer, problems, sizes.group, 2000 + seed, truth.LIMIT)
        numbers, parts = measured(lm, graded, number, gradient)
        lines += [line_of(base, row, number, **each) for row, each in numbers.items()]
        sums[number % 2] += parts
        batches.append(graded)

    for row, one, other in zip(STATIC, *sums, strict=True):
        numbers = cosines(one + other, gradient) | {"agreement": cosine(one[0], other[0])}
        lines.append(line_of(base, row, "sum", **numbers))

    numbers, _ = measured(lm, joined(lm, batches), sizes.batches, gradient)
    lines += [line_of(base, row, "whole", **each) for row, each in numbers.items()]
    return lines + truth_lines(base, sizes.truth)


def joined(lm, parts: list[GradedBatch]) -> GradedBatch:
    """Joins several batches of complete groups into one batch."""
    rollouts = sum((part.rollouts for part in parts), [])
    advantages = torch.cat([part.advantages for part in parts])
    tokens = packed_tokens(lm, rollouts, advantages)
    tokens.problems = sum((part.tokens.problems for part in parts), [])
    return GradedBatch(
        rollouts=rollouts,
        tokens=tokens,
        rewards=torch.cat([part.rewards for part in parts]),
        advantages=advantages,
        decisive=torch.cat([part.decisive for part in parts]),
        group=parts[0].group,
    )


# ---- one batch -----------------------------------------------------------------------------------


def measured(
    lm, graded: GradedBatch, seed: int, gradient: torch.Tensor
) -> tuple[dict[str, dict], torch.Tensor]:
    """Measure the rows on a batch. Returns {row: {column: number}} and the updates.

    seed: for rows that draw random numbers. gradient: the policy gradient [D]. Updates have shape
    [rows, 3, D] (PARTS).
    """
    scored = {}
    numbers = {}
    weights = []
    for row in STATIC:
        found = weighed(row, lm, graded, seed, scored)
        weights.append(found.weights)
        numbers[row] = {"tokens": len(found.weights), **singled_out(found.weights, graded)}
        numbers[row] |= dict(zip(("spread_pos", "spread_neg"), found.spread, strict=True))
        numbers[row] |= dict(zip(("saturated_pos", "saturated_neg"), found.saturated, strict=True))

    sides = side_directions(lm, graded.rollouts, graded.advantages, torch.stack(weights))
    dapo = sides[list(STATIC).index("dapo")]
    parts = []
    for row, each, of_row in zip(STATIC, weights, sides, strict=True):
        parts.append(parts_of(of_row, dapo, side_means(each, graded.tokens.advantage)))
        numbers[row] |= cosines(parts[-1], gradient)
    return numbers, torch.stack(parts)


def cosines(parts: torch.Tensor, gradient: torch.Tensor) -> dict[str, float]:
    """The cosines between an update with its split [3, D] and the policy gradient [D].

    cosine_sign: the cosine of sign(update), the direction of Adam's first step.
    """
    names = ("cosine", *(f"cosine_{part}" for part in PARTS[1:]))
    found = {name: cosine(part, gradient) for name, part in zip(names, parts, strict=True)}
    return found | {"cosine_sign": cosine(parts[0].sign(), gradient)}


# ---- against the true advantages -----------------------------------------------------------------


def truth_lines(base: int, path: Path) -> list[dict]:
    """One line per row for a base whose Q - V was measured; otherwise an empty list.

    path: results/truth.csv. Prints a message if it is missing or lacks these responses.
    """
    if not path.exists():
        print(f"base {base}: not compared with Q - V: no {path} (bench.py truth writes it)")
        return []
    known = [line for line in truth.read_truth(path) if line["base"] == base]
    lm, tokenizer = truth.load(base)
    graded = truth.batch_of(lm, tokenizer, base)
    words = tokenizer.convert_ids_to_tokens(graded.tokens.token.tolist())
    if words != [line["token"] for line in known]:
        print(f"base {base}: {path} does not hold the responses sampled on this machine")
        return []

    scored = {}
    lines = []
    for row in STATIC:
        weights = weighed(row, lm, graded, base, scored).weights
        numbers = against_truth(weights, graded.tokens.advantage, known)
        lines.append(line_of(base, row, "truth", tokens=len(weights), **numbers))
    return lines


def against_truth(
    weights: torch.Tensor, advantage: torch.Tensor, known: list[dict]
) -> dict[str, float]:
    """How well weights [N] rank each side's tokens by their true advantage Q - V.

    The update is Σ ρ A v, and with true advantages it would be Σ (Q - V) v. So a weight's target is
    (Q - V) / A, with its sign. It is below 0 for a right step in a wrong response.
    advantage: A [N]. known: the lines in results/truth.csv for these N tokens.
    size_auc: AUC for |Q - V| beyond two standard errors. signed_auc: AUC for a Q - V with the sign
    of A beyond two standard errors. signed_rank: rank correlation with the target.
    """
    gain = torch.tensor([line["advantage"] for line in known])
    error = torch.tensor([line["standard_error"] for line in known])
    clear = gain.abs() > 2 * error  # False where both are 0: p is nearly 1
    helpful = clear & (gain * advantage > 0)
    numbers = {}
    for name, side in (("pos", advantage > 0), ("neg", advantage < 0)):
        here = weights[side]
        numbers[f"size_auc_{name}"] = auc(here, clear[side])
        numbers[f"signed_auc_{name}"] = auc(here, helpful[side])
        numbers[f"signed_rank_{name}"] = rank_correlation(here, gain[side] / advantage[side])
    return numbers
