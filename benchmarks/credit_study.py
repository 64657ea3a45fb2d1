"""Does the credit land where it should? The study behind results/credit.csv (`credit`).

For every method, proxy and K, over batches of 16 prompts x 8 responses from the base model: the AUC
with which its weights rank decisive above other tokens, on each side; and the cosine between the
batch's update, the gradient of Σ ρ A log π, and the policy gradient, estimated from 32,768 other
responses with the group's mean as the baseline. Then other fillers, and rewards flipped at random.

About six minutes on two cores.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

import toy
from benchmarks.credit import (
    ORACLE,
    ROWS,
    GradedBatch,
    auc,
    batch,
    direction,
    policy_gradient,
    weights_of,
)
from benchmarks.statistics import mean_interval
from benchmarks.tables import table_line, write_csv

BATCHES = 16
PROMPTS = 16  # of a batch
GROUP = 8
SOME_ROWS = ("dapo", "lm_head, K = 1", "exact, K = 1", ORACLE)


@dataclass(frozen=True)
class Case:
    """A base model, and whether its rewards are to be trusted."""

    filler: int  # connectives that open a step
    flip: float  # share of the rewards that are turned over
    names: tuple[str, ...]  # of ROWS


CASES = (
    Case(1, 0.0, tuple(ROWS)),
    *(Case(filler, 0.0, SOME_ROWS) for filler in (0, 2, 4)),
    *(Case(1, flip, SOME_ROWS) for flip in (0.1, 0.2, 0.4)),
)


def credit(args) -> list[dict]:
    """Fill --csv and print its means with 95 % intervals over batches."""
    first, second = policy_gradient(*toy.base_model(filler=1))
    truth = first + second
    agreement = float(torch.cosine_similarity(first, second, dim=0))

    lines = []
    for case in tqdm(CASES, desc="cases", disable=None):
        lm, tokenizer = toy.base_model(filler=case.filler)
        for seed in range(BATCHES):
            lines += measured(case, seed, lm, tokenizer, truth if case.filler == 1 else None)

    write_csv(Path(args.csv), [rounded(line) for line in lines])
    print(f"cosine between the two halves of the policy gradient's estimate: {agreement:.3f}\n")
    print_means(lines)
    return lines


def measured(case: Case, seed: int, lm, tokenizer, truth: torch.Tensor | None) -> list[dict]:
    """The lines of results/credit.csv of one batch, one for each row of the case.

    truth: the policy gradient [D], or None where it is another model's.
    """
    problems = toy.problems(PROMPTS, seed=2000 + seed)
    graded = batch(lm, tokenizer, problems, GROUP, seed, flip=case.flip)
    clean = graded
    if case.flip:
        clean = batch(lm, tokenizer, problems, GROUP, seed)  # the same responses

    lines = []
    for name in case.names:
        line = {"row": name, "filler": case.filler, "flip": case.flip, "batch": seed}
        lines.append(line | numbers_of(name, seed, lm, graded, clean, truth))
    return lines


def numbers_of(
    name: str,
    seed: int,
    lm,
    graded: GradedBatch,
    clean: GradedBatch,
    truth: torch.Tensor | None,
) -> dict:
    """What is measured of a row of credit.ROWS on a batch.

    clean: the same responses with all rewards as graded.
    """
    weights = weights_of(name, lm, graded, seed)
    clean_weights = weights
    if clean is not graded:
        clean_weights = weights_of(name, lm, clean, seed)

    advantage = graded.tokens.advantage
    pos = advantage > 0
    neg = advantage < 0
    both = (advantage != 0) & (clean.tokens.advantage != 0)

    cosine = float("nan")
    if truth is not None:
        update = direction(lm, graded.rollouts, weights * advantage)
        cosine = float(torch.cosine_similarity(update, truth, dim=0))

    return {
        "tokens": len(weights),
        "auc_pos": auc(weights[pos], graded.decisive[pos]),
        "auc_neg": auc(weights[neg], graded.decisive[neg]),
        "cosine": cosine,
        "rank_correlation": rank_correlation(weights[both], clean_weights[both]),
    }


def rank_correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """The correlation of the ranks of a and b, ties sharing theirs; NaN where one is constant."""
    ranks = torch.stack([dense_ranks(a), dense_ranks(b)])
    return float(torch.corrcoef(ranks)[0, 1])


def dense_ranks(values: torch.Tensor) -> torch.Tensor:
    """0 for the lowest value, 1 for the next distinct one, and so on: float64."""
    return values.unique(return_inverse=True)[1].double()


def rounded(line: dict) -> dict:
    """The line with its floats to four digits."""
    return {key: round(x, 4) if isinstance(x, float) else x for key, x in line.items()}


def print_means(lines: list[dict]) -> None:
    """The table of RESULTS.md: a line for each row of each case."""
    print(
        "| row | filler | flipped rewards | AUC, positive side | AUC, negative side "
        "| cosine with the policy gradient |\n|---|---|---|---|---|---|"
    )
    for case in CASES:
        for name in case.names:
            wanted = (name, case.filler, case.flip)
            some = [x for x in lines if (x["row"], x["filler"], x["flip"]) == wanted]
            cells = [interval(some, key) for key in ("auc_pos", "auc_neg", "cosine")]
            print(table_line([name, case.filler, f"{case.flip:.0%}", *cells]))


def interval(lines: list[dict], key: str) -> str:
    """`mean ± half-width` of a number over batches; `-` where it was not measured."""
    return mean_interval([line[key] for line in lines]).replace("nan ± nan", "-")
