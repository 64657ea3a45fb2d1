"""Does the credit land where it should, and what does it do to the update? (`credit`)

For each base model (chains of 12, rare errors), the batches of 16 prompts x 8 responses are
weighed by every row of rows.STATIC: do the weights single out decisive tokens, how near are the
update Σ ρ A v and its sign to the policy gradient, and how saturated are DelTA's scores? The same
responses are then weighed once more as one batch of 2,048, which tells what a small batch costs a
method that takes statistics of it. Where results/truth.csv has the true advantage Q - V of single
tokens (`bench.py truth`), weights are compared with it on the responses that it is of.

results/credit.csv has a line for each base, row and batch: 0 to 15, `sum` (their updates added
up), `whole` (all of them as one batch) and `truth`. Bases that are in it are not measured again.
Some 35 minutes on two cores, and at most 5 GB of memory.
"""

from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
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
from studies.gradients import PARTS, cosine, parts_of, side_means, sides_of_rows
from studies.ranking import auc, rank_correlation
from studies.rows import STATIC
from studies.tables import appending, read_csv


def by_side(*names: str) -> list[str]:
    """The columns of numbers that each side has."""
    return [f"{name}_{side}" for side in ("pos", "neg") for name in names]


FIRST_COLUMNS = [
    *("base", "row", "batch", "tokens"),
    *by_side("auc", "tied", "lift", "mean", "spread", "saturated"),
    *("cosine", "cosine_shape", "cosine_means", "agreement"),
    *by_side("size_auc", "size_rank", "signed_rank"),
]
LATER_COLUMNS = ["cosine_sign", *by_side("mass")]  # which older files lack
COLUMNS = FIRST_COLUMNS + LATER_COLUMNS
POLICY_GRADIENT = "policy gradient"  # a row of its own: how well the halves of its estimate agree


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    bases: tuple[int, ...] = (0, 1, 2, 3, 4)  # build seeds
    batches: int = 16  # of a base, an even number
    prompts: int = 16  # of a batch
    group: int = 8  # responses to each
    gradient_prompts: int = 128  # of half the policy gradient's estimate
    gradient_group: int = 64
    truth: Path = Path("results/truth.csv")


def credit(args, sizes: Sizes = Sizes()) -> list[dict]:
    """Which tokens the weights single out, and how near an update is to the policy gradient.

    Half an hour. Fill --csv, print its means over bases with 95 % intervals, and draw them beside
    DAPO.
    """
    path = Path(args.csv)
    torch.set_num_threads(1)  # a base that is built depends on their number
    before = lines_before(path)
    refuse_older(path, before)
    found = {(line["base"], line["batch"]) for line in before}
    bases = {base for base in sizes.bases if not {(base, "whole"), (base, "truth")} <= found}
    with (
        ProcessPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool,
        appending(path, COLUMNS) as write,
    ):
        list(pool.map(folder_of, bases))  # built at need
        for base in tqdm(sizes.bases, desc="bases", disable=None):
            if (base, "whole") not in found:
                write(lines_of_base(pool, base, sizes))
            if (base, "truth") not in found:
                write(list(pool.map(partial(truth_lines, base), [sizes.truth]))[0])
    lines = lines_before(path)
    print_tables(lines)
    if len(sizes.bases) > 1:  # as for the tables' intervals
        draw_split(lines, path.with_suffix(".png"))
    return lines


def lines_before(path: Path) -> list[dict]:
    """The lines of an earlier run, with numbers as numbers; a cell without one is NaN.

    So are the columns that a file lacks because it is older than they are.
    """
    found = read_csv(path, FIRST_COLUMNS if is_older(path) else COLUMNS)
    for line in found:
        if line["row"] not in (*STATIC, POLICY_GRADIENT):
            raise UserError(f"{path} has a row {line['row']!r} that this study has not: remove it")
        line["base"] = int(line["base"])
        for name in COLUMNS[3:]:
            line[name] = float(line.get(name, "nan"))
    return found


def is_older(path: Path) -> bool:
    """Whether the file is from before LATER_COLUMNS."""
    if not path.exists():
        return False
    return path.read_text().partition("\n")[0] == ",".join(FIRST_COLUMNS)


def refuse_older(path: Path, lines: list[dict]) -> None:
    """Raise UserError where lines of this study cannot stand beside those of the file."""
    missing = LATER_COLUMNS if is_older(path) else []
    if lines:
        measured = {line["row"] for line in lines}
        missing = [*missing, *(row for row in STATIC if row not in measured)]
    if missing:
        raise UserError(
            f"{path} is of an earlier version, without {'; '.join(missing)}: move it away, "
            "and all bases are measured again"
        )


def line_of(base: int, row: str, batch_name: int | str, **numbers: float) -> dict:
    """A line of the CSV, NaN where there is no number, floats to five digits."""
    line = dict.fromkeys(COLUMNS, float("nan"))
    line |= {"base": base, "row": row, "batch": str(batch_name)}
    for name, value in numbers.items():
        line[name] = round(float(value), 5)
    return line


# ---- one base ------------------------------------------------------------------------------------


def folder_of(base: int) -> Path:
    """The folder of a base model of the study, built at need."""
    return toy.base_folder(k=truth.K, noise=truth.NOISE, seed=base)


def load(base: int):
    """(model, tokenizer) of a base model of the study."""
    return toy.load_base(folder_of(base))


def lines_of_base(pool: Executor, base: int, sizes: Sizes) -> list[dict]:
    """All lines of a base but those of `truth`; every step is two equal jobs."""
    first, second = pool.map(partial(half_of_gradient, base, sizes), (0, 1))
    gradient = first + second
    agreement = cosine(torch.from_numpy(first), torch.from_numpy(second))
    lines = [line_of(base, POLICY_GRADIENT, "whole", agreement=agreement)]

    halves = list(pool.map(partial(batches_of, base, sizes, gradient), (0, 1)))
    sums = [torch.from_numpy(half_sums) for _, half_sums in halves]
    for half_lines, _ in halves:
        lines += half_lines
    lines += lines_of_sums(base, *sums, torch.from_numpy(gradient))

    names = list(STATIC)
    for part in pool.map(partial(whole_of, base, sizes, gradient), (names[::2], names[1::2])):
        lines += part
    return lines


def half_of_gradient(base: int, sizes: Sizes, half: int) -> np.ndarray:
    """One of two independent estimates of the policy gradient: [D]."""
    lm, tokenizer = load(base)
    seed = 10 * base + half
    problems = toy.problems(sizes.gradient_prompts, seed=6000 + seed, k=truth.K)
    group = sizes.gradient_group
    return gradient_estimate(lm, tokenizer, problems, group, 500 + seed, truth.LIMIT).numpy()


def sampled(base: int, sizes: Sizes, number: int, lm, tokenizer) -> GradedBatch:
    """Batch `number` of a base."""
    seed = 100 * base + number
    problems = toy.problems(sizes.prompts, seed=8000 + seed, k=truth.K)
    return batch(lm, tokenizer, problems, sizes.group, 2000 + seed, truth.LIMIT)


def batches_of(
    base: int, sizes: Sizes, gradient: np.ndarray, half: int
) -> tuple[list[dict], np.ndarray]:
    """The lines of every other batch, and the sums of their updates [rows, 3, D] (PARTS)."""
    lm, tokenizer = load(base)
    lines = []
    total = 0.0
    for number in range(half, sizes.batches, 2):
        graded = sampled(base, sizes, number, lm, tokenizer)
        numbers, parts = measured(list(STATIC), lm, graded, number, torch.from_numpy(gradient))
        lines += [line_of(base, row, number, **each) for row, each in numbers.items()]
        total = total + parts
    return lines, total.numpy()


def lines_of_sums(
    base: int, first: torch.Tensor, second: torch.Tensor, gradient: torch.Tensor
) -> list[dict]:
    """A line for each row: the updates of all batches added up, and how well two halves agree.

    first, second: sums over half the batches each, [rows, 3, D].
    """
    lines = []
    for row, one, other in zip(STATIC, first, second, strict=True):
        numbers = cosines(one + other, gradient)
        numbers["agreement"] = cosine(one[0], other[0])
        lines.append(line_of(base, row, "sum", **numbers))
    return lines


def whole_of(base: int, sizes: Sizes, gradient: np.ndarray, names: list[str]) -> list[dict]:
    """The lines of some rows on all batches taken as one."""
    lm, tokenizer = load(base)
    parts = [sampled(base, sizes, number, lm, tokenizer) for number in range(sizes.batches)]
    graded = joined(lm, parts)
    numbers, _ = measured(names, lm, graded, sizes.batches, torch.from_numpy(gradient))
    return [line_of(base, row, "whole", **each) for row, each in numbers.items()]


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
    names: list[str], lm, graded: GradedBatch, seed: int, gradient: torch.Tensor
) -> tuple[dict[str, dict], torch.Tensor]:
    """What rows make of a batch: their numbers, by COLUMNS, and their updates [rows, 3, D] (PARTS).

    seed: of rows that draw; gradient: the policy gradient [D].
    """
    scored = {}
    numbers = {}
    weights = []
    for row in names:
        found = weighed(row, lm, graded, seed, scored)
        weights.append(found.weights)
        numbers[row] = {"tokens": len(found.weights), **singled_out(found.weights, graded)}
        numbers[row] |= dict(zip(("spread_pos", "spread_neg"), found.spread, strict=True))
        numbers[row] |= dict(zip(("saturated_pos", "saturated_neg"), found.saturated, strict=True))

    plain = torch.ones_like(weights[0])
    sides = sides_of_rows(lm, graded.rollouts, graded.advantages, [plain, *weights])
    parts = []
    for row, each, of_row in zip(names, weights, sides[1:], strict=True):
        parts.append(parts_of(of_row, sides[0], side_means(each, graded.tokens.advantage)))
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
