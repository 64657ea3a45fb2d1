"""Does the credit land where it should, and what does it do to the update? (`credit`)

For each base model (chains of 12, rare errors), the batches of 16 prompts x 8 responses are
weighed by every row of rows.STATIC: do the weights single out decisive tokens, how near are the
update Σ ρ A v and its sign to the policy gradient, and how saturated are DelTA's scores? The same
responses are then weighed once more as one batch of 2,048, which tells what a small batch costs a
method that takes statistics of it. Where results/truth.csv has the true advantage Q - V of single
tokens (`bench.py truth`), weights are compared with it on the responses that it is of.

results/credit.csv has a line for each base, row and batch: 0 to 15, `sum` (their updates added
up), `whole` (all of them as one batch) and `truth`. Bases that are in it are not measured again.
An estimated 45 minutes on two cores, each of which has a base, and some 5 GB of memory.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

import toy
from infra.errors import UserError
from infra.packing import join
from studies import truth
from studies.credit import (
    GradedBatch,
    batch,
    gradient_estimate,
    packed_tokens,
    singled_out,
    weighed,
)
from studies.credit_tables import draw_split, print_tables
from studies.gradients import PARTS, cosine, parts_of, side_directions, side_means
from studies.ranking import auc, rank_correlation
from studies.rows import STATIC
from studies.tables import appending, read_csv


def by_side(*names: str) -> list[str]:
    """The columns of numbers that each side has."""
    return [f"{name}_{side}" for side in ("pos", "neg") for name in names]


COLUMNS = [
    *("base", "row", "batch", "tokens"),
    *by_side("auc", "tied", "lift", "mean", "spread", "saturated"),
    *("cosine", "cosine_shape", "cosine_means", "agreement"),
    *by_side("size_auc", "size_rank", "signed_rank"),
    *("cosine_sign", *by_side("mass")),
]
POLICY_GRADIENT = "policy gradient"  # a row of its own: how well the halves of its estimate agree


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    bases: tuple[int, ...] = (0, 1, 2, 3, 4)  # build seeds
    batches: int = 16  # of a base, an even number: two halves are compared
    prompts: int = 16  # of a batch
    group: int = 8  # responses to each
    gradient_prompts: int = 128  # of half the policy gradient's estimate
    gradient_group: int = 64
    truth: Path = Path("results/truth.csv")


def credit(args, sizes: Sizes = Sizes()) -> list[dict]:
    """Which tokens the weights single out, and how near an update is to the policy gradient.

    An estimated 45 minutes. Fill --csv, print its means over bases with 95 % intervals, and draw
    them beside DAPO.
    """
    path = Path(args.csv)
    torch.set_num_threads(1)  # a base that is built depends on their number
    before = lines_before(path)
    measured_rows = {line["row"] for line in before}
    missing = [row for row in STATIC if row not in measured_rows]
    if before and missing:
        raise UserError(
            f"{path} is of an earlier version, without {'; '.join(missing)}: move it away, "
            "and all bases are measured again"
        )
    finished = {line["base"] for line in before}
    bases = [base for base in sizes.bases if base not in finished]
    with (
        ProcessPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool,
        appending(path, COLUMNS) as write,
    ):
        parts = pool.map(partial(lines_of_base, sizes), bases)
        for part in tqdm(parts, total=len(bases), desc="bases", disable=None):
            write(part)
    lines = lines_before(path)
    print_tables(lines)
    if len(sizes.bases) > 1:  # as for the tables' intervals
        draw_split(lines, path.with_suffix(".png"))
    return lines


def lines_before(path: Path) -> list[dict]:
    """The lines of an earlier run, with numbers as numbers; a cell without one is NaN."""
    found = read_csv(path, COLUMNS)
    for line in found:
        if line["row"] not in (*STATIC, POLICY_GRADIENT):
            raise UserError(f"{path} has a row {line['row']!r} that this study has not: remove it")
        line["base"] = int(line["base"])
        for name in COLUMNS[3:]:
            line[name] = float(line[name])
    return found


def line_of(base: int, row: str, batch_name: int | str, **numbers: float) -> dict:
    """A line of the CSV, NaN where there is no number, floats to five digits."""
    line = dict.fromkeys(COLUMNS, float("nan"))
    line |= {"base": base, "row": row, "batch": str(batch_name)}
    for name, value in numbers.items():
        line[name] = round(float(value), 5)
    return line


# ---- one base ------------------------------------------------------------------------------------


def load(base: int):
    """(model, tokenizer) of a base model of the study, built at need."""
    return toy.base_model(k=truth.K, noise=truth.NOISE, seed=base)


def lines_of_base(sizes: Sizes, base: int) -> list[dict]:
    """All lines of a base."""
    lm, tokenizer = load(base)
    halves = []  # two independent estimates of the policy gradient, [D] each
    for half in (0, 1):
        seed = 10 * base + half
        problems = toy.problems(sizes.gradient_prompts, seed=6000 + seed, k=truth.K)
        group = sizes.gradient_group
        halves.append(gradient_estimate(lm, tokenizer, problems, group, 500 + seed, truth.LIMIT))
    gradient = halves[0] + halves[1]
    lines = [line_of(base, POLICY_GRADIENT, "whole", agreement=cosine(*halves))]

    batches = []
    sums = [0.0, 0.0]  # of the updates of every other batch, [rows, 3, D] (PARTS)
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
    """Several batches of whole groups as one."""
    rollouts = join([part.rollouts for part in parts])
    advantages = torch.cat([part.advantages for part in parts])
    return GradedBatch(
        rollouts=rollouts,
        tokens=packed_tokens(lm, rollouts, advantages),
        rewards=torch.cat([part.rewards for part in parts]),
        advantages=advantages,
        decisive=torch.cat([part.decisive for part in parts]),
        group=parts[0].group,
    )


# ---- one batch -----------------------------------------------------------------------------------


def measured(
    lm, graded: GradedBatch, seed: int, gradient: torch.Tensor
) -> tuple[dict[str, dict], torch.Tensor]:
    """What the rows make of a batch: numbers, by COLUMNS, and updates [rows, 3, D] (PARTS).

    seed: of rows that draw; gradient: the policy gradient [D].
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
    """The cosines of an update and its split [3, D] with the policy gradient [D].

    cosine_sign: of sign(update), which is the direction of Adam's first step.
    """
    names = ("cosine", *(f"cosine_{part}" for part in PARTS[1:]))
    found = {name: cosine(part, gradient) for name, part in zip(names, parts, strict=True)}
    return found | {"cosine_sign": cosine(parts[0].sign(), gradient)}


# ---- against the true advantages -----------------------------------------------------------------


def truth_lines(base: int, path: Path) -> list[dict]:
    """A line for each row on the responses of a base whose Q - V is known; none where it is not.

    path: of results/truth.csv. A line is printed where there is none, or of other responses.
    """
    if not path.exists():
        print(f"base {base}: no {path} (bench.py truth), so nothing is compared with Q - V")
        return []
    known = [line for line in truth.read_truth(path) if line["base"] == base]
    lm, tokenizer = load(base)
    graded = truth.batch_of(lm, tokenizer, base)
    words = tokenizer.convert_ids_to_tokens(graded.tokens.token.tolist())
    if words != [line["token"] for line in known]:
        print(f"base {base}: {path} is of other responses than this machine's base model gives")
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
    """How weights [N] rank the tokens of a side by what they changed, Q - V.

    advantage: A [N]. known: the lines of results/truth.csv of these N tokens.
    size_auc: AUC for |Q - V| beyond two standard errors; size_rank: rank correlation with |Q - V|;
    signed_rank: with (Q - V) sign(A), which is below 0 for a token that its side should not learn.
    """
    gain = torch.tensor([line["advantage"] for line in known])
    error = torch.tensor([line["standard_error"] for line in known])
    size = gain.abs()
    clear = size > 2 * error  # not where both are 0: a token that is sure
    numbers = {}
    for name, side in (("pos", advantage > 0), ("neg", advantage < 0)):
        here = weights[side]
        numbers[f"size_auc_{name}"] = auc(here, clear[side])
        numbers[f"size_rank_{name}"] = rank_correlation(here, size[side])
        numbers[f"signed_rank_{name}"] = rank_correlation(here, (gain * advantage.sign())[side])
    return numbers
