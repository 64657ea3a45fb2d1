"""Which tokens get the credit, and how near an update is to the policy gradient.

For each base model (chains of 12, rare errors), every row of STATIC weights 16 batches of 16
prompts x 8 responses. results/credit.csv has one line per base and row: means over the batches of

    auc         for the tokens that toy.decisive marks, by side
    spread      standard deviation of the margins over the γ in use, by side
    saturated   share of scores below 0.01 or above 0.99, by side
    cosine      of the update Σ ρ A v with the policy gradient; cosine_sign: of its sign, the
                direction of Adam's first step
    signed_auc  on the batch of `truth`: for tokens whose Q - V has, clearly, the sign of A

results/truth.csv has two lines per base: how well toy.decisive agrees with |Q - V| (truth.py).
Bases in a file are not measured again; for a new row, pass another --csv. Page: docs/results/credit.md.
"""

from pathlib import Path

import numpy as np
import torch

import toy
from batch import Rollout
from benchmarks.batches import (
    auc,
    cosine,
    directions,
    gradient_estimate,
    sampled,
    scored,
    weighed,
)
from benchmarks.rows import CREDIT, MAIN, decisive_tokens
from benchmarks.runs import fill
from benchmarks.statistics import half_width, holm, mean_interval, p_value
from benchmarks.tables import print_table, read_csv
from benchmarks.truth import Truth, agreement, branched
from infra.ranks import this_device

BASES = range(5)  # build seeds
K = 12
NOISE = 0.06
LIMIT = 112  # tokens in a response, and in a continuation
BATCHES = 16
PROMPTS = 16
GROUP = 8
GRADIENT = (256, 64)  # prompts and responses to each, for the policy gradient
TRUTH_PROMPTS = 8

OTHERS = ("centred", "centred, K = 0", "surprise", "no centroids")
STATIC = (*MAIN, "forking_tokens", *OTHERS, *CREDIT)
SIDES = ("pos", "neg")
NUMBERS = (
    *(f"{name}_{side}" for name in ("auc", "spread", "saturated", "signed_auc") for side in SIDES),
    *("cosine", "cosine_sign"),
)
COLUMNS = ("base", "row", *NUMBERS)
OF_TRUTH = ("base", "responses", "tokens", "auc", "share", "clear", "above")


def credit(args) -> list[dict]:
    """Which tokens the rows' weights favour, and how near updates are to the policy gradient.

    Takes an hour and a half on two cores, half of it for the true credit. Fills --csv.
    """
    path = Path(args.csv)
    finished = {line["base"] for line in read_csv(path, COLUMNS)}
    missing = [base for base in BASES if str(base) not in finished]
    fill(path, COLUMNS, lines_of_base, missing, "bases")
    lines = read_csv(path, COLUMNS)
    print_credit(lines)
    return lines


def truth(args) -> list[dict]:
    """The true credit of single tokens, from continuations of each prefix (half an hour)."""
    path = Path(args.csv)
    finished = {line["base"] for line in read_csv(path, OF_TRUTH)}
    missing = [base for base in BASES if str(base) not in finished]
    fill(path, OF_TRUTH, truth_lines, missing, "bases")
    lines = read_csv(path, OF_TRUTH)
    print_truth(lines)
    return lines


# ---- one base ------------------------------------------------------------------------------------


def load(base: int) -> tuple:
    """The model and tokenizer of the base built with this seed; built here if it is missing."""
    lm, tokenizer = toy.base_model(k=K, noise=NOISE, seed=base)
    return lm.to(this_device()), tokenizer


def lines_of_base(base: int) -> list[dict]:
    """The lines of credit.csv for one base."""
    lm, tokenizer = load(base)
    prompts, group = GRADIENT
    gradient = 0.0  # two halves, as in the first study
    for half in (0, 1):
        seed = 10 * base + half
        problems = toy.problems(prompts // 2, seed=6000 + seed, k=K)
        gradient += gradient_estimate(lm, tokenizer, problems, group, 500 + seed, LIMIT)

    found = {row: [] for row in STATIC}  # a dictionary of numbers for each batch
    for number in range(BATCHES):
        seed = 100 * base + number
        problems = toy.problems(PROMPTS, seed=8000 + seed, k=K)
        rollouts = sampled(lm, tokenizer, problems, GROUP, 2000 + seed, LIMIT)
        for row, numbers in measured(lm, rollouts, number, gradient).items():
            found[row].append(numbers)

    rollouts, known = true_credit(lm, tokenizer, base)
    lines = []
    for row, of_batches in found.items():
        weights = weighed(row, lm, rollouts, GROUP, base).weights
        numbers = {name: np.nanmean([x[name] for x in of_batches]) for name in of_batches[0]}
        numbers |= signed_aucs(weights, scored(lm, rollouts, GROUP).advantage, known)
        cells = {name: round(float(value), 5) for name, value in numbers.items()}
        lines.append({"base": base, "row": row, **cells})
    return lines


def measured(
    lm, rollouts: list[Rollout], seed: int, gradient: torch.Tensor
) -> dict[str, dict[str, float]]:
    """Row -> its numbers on one batch. gradient: the policy gradient [D]."""
    tokens = scored(lm, rollouts, GROUP)
    decisive = decisive_tokens(tokens)
    sides = (tokens.advantage > 0, tokens.advantage < 0)
    of_rows = {row: weighed(row, lm, rollouts, GROUP, seed) for row in STATIC}
    weights = torch.stack([each.weights for each in of_rows.values()])  # [M, N]
    updates = directions(lm, rollouts, weights * tokens.advantage)
    numbers = {}
    for (row, each), update in zip(of_rows.items(), updates, strict=True):
        numbers[row] = {
            "cosine": cosine(update, gradient),
            "cosine_sign": cosine(update.sign(), gradient),
        }
        for i, (name, side) in enumerate(zip(SIDES, sides, strict=True)):
            numbers[row][f"auc_{name}"] = auc(each.weights[side], decisive[side])
            numbers[row][f"spread_{name}"] = each.spread[i]
            numbers[row][f"saturated_{name}"] = each.saturated[i]
    return numbers


def true_credit(lm, tokenizer, base: int) -> tuple[list[Rollout], Truth]:
    """Responses to a base's problems, and the true credit of their tokens."""
    problems = toy.problems(TRUTH_PROMPTS, seed=4000 + base, k=K)
    rollouts = sampled(lm, tokenizer, problems, GROUP, base, LIMIT)
    return rollouts, branched(lm, tokenizer, rollouts, scored(lm, rollouts, GROUP), LIMIT)


def signed_aucs(weights: torch.Tensor, advantage: torch.Tensor, known: Truth) -> dict[str, float]:
    """The AUC of weights [N] for a clear Q - V with the sign of A, by side.

    The update is Σ ρ A v, and with true credit it would be Σ (Q - V) v. So a weight's target is
    (Q - V) / A, with its sign. It is below 0 for a right step in a wrong response.
    """
    helpful = known.clear & (known.credit * advantage > 0)
    sides = (advantage > 0, advantage < 0)
    pairs = zip(SIDES, sides, strict=True)
    return {f"signed_auc_{name}": auc(weights[side], helpful[side]) for name, side in pairs}


def truth_lines(base: int) -> list[dict]:
    """The lines of truth.csv for one base."""
    lm, tokenizer = load(base)
    rollouts, known = true_credit(lm, tokenizer, base)
    marks = decisive_tokens(scored(lm, rollouts, GROUP))
    lines = []
    for line in agreement(known, rollouts, marks):
        line |= {name: round(line[name], 4) for name in ("auc", "share")}
        lines.append({"base": base, **line})
    return lines


# ---- tables and the picture ----------------------------------------------------------------------


def by_row(lines: list[dict], column: str) -> dict[str, np.ndarray]:
    """Row -> a column's numbers: [bases]."""
    rows = dict.fromkeys(line["row"] for line in lines)
    return {row: np.array([float(x[column]) for x in lines if x["row"] == row]) for row in rows}


def print_credit(lines: list[dict]) -> None:
    """Print one line per row: means over the bases; intervals and stars for the cosines.

    A star: significant at 5 % by a t-test over bases, with Holm's correction over the rows.
    """
    cells = {row: [] for row in by_row(lines, "cosine")}
    for column in ("auc", "signed_auc", "spread", "saturated"):
        digits = 1 if column == "spread" else 3
        for side in SIDES:
            for row, values in by_row(lines, f"{column}_{side}").items():
                known = not np.isnan(values).any()
                cells[row].append(f"{values.mean():.{digits}f}" if known else "-")
    for column in ("cosine", "cosine_sign"):
        gains = minus_dapo(lines, column)
        adjusted = holm({row: p_value(values) for row, values in gains.items()})
        for row, values in by_row(lines, column).items():
            if row == "dapo":
                cells[row].append(mean_interval(values))
                continue
            star = "*" if adjusted[row] < 0.05 else ""
            cells[row].append(f"{gains[row].mean():+.3f} ± {half_width(gains[row]):.3f}{star}")
    header = ["row", *(f"{name} {side}" for name in ("AUC", "signed AUC") for side in "+-")]
    header += [f"{name} {side}" for name in ("sd/γ", "saturated") for side in "+-"]
    header += ["cosine - DAPO's", "cosine of the sign - DAPO's"]
    print_table(header, [[row, *values] for row, values in cells.items()])


def minus_dapo(lines: list[dict], column: str) -> dict[str, np.ndarray]:
    """Row -> a column minus DAPO's: [bases]; without DAPO."""
    cells = by_row(lines, column)
    return {row: values - cells["dapo"] for row, values in cells.items() if row != "dapo"}


def print_truth(lines: list[dict]) -> None:
    """Print the lines of truth.csv."""
    table = []
    for x in lines:
        cells = [x["base"], x["responses"], x["tokens"], f"{float(x['auc']):.3f}"]
        table.append([*cells, f"{float(x['share']):.2f}", x["clear"], x["above"]])
    header = ["base", "responses", "tokens", "AUC of \\|Q - V\\| for labels"]
    print_table([*header, "labelled share of Σ\\|Q - V\\|", "clear", "of these above 0"], table)
