"""Does a proxy's mean matter, or what it knows of the word? (`proxies`)

A token's gradient has mean zero: E[∇ log p(y) | state] = 0. DelTA's row proxy (1 - p) h has not.
Here DelTA stays as published and only v changes: whether E[v | state] is 0, whether v contains the
state h, and whether it contains the word y. One line subtracts a constant from v, which changes no
weight: v, μ₊ and μ₋ move together, so that ‖v - μ‖ stays. Only the cosine of the centroids changes,
so that cosine alone is no sign of what the weights will be.

For each base a few batches of 16 prompts x 8 responses, on which a line is a mean.

Shapes: N packed response tokens, n of them in a micro-batch, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch

import toy
from ablations import lm_head_gradient, surprise, surprise_proxy, top_k_hidden_gradient
from delta import centroids
from methods import row_proxy
from studies.credit import (
    GradedBatch,
    batch,
    gradient_estimate,
    packed_tokens,
    weighed_by_delta,
    weights_of,
)
from studies.credit_study import Sizes
from studies.gradients import cosine, directions
from studies.places import SETTINGS, Setting
from studies.rows import IN_RANGE, Row, configured
from studies.tables import table_line

DIRECTIONS = 8  # of the random projections of e_y - p
STATES = 64  # of which the mean of v over the vocabulary is taken

# ---- proxies: (rows, head) -> [n, F] -------------------------------------------------------------


def probabilities(rows, head) -> torch.Tensor:
    """p of every word: [n, V]."""
    return (rows.hidden @ head().to(rows.hidden.dtype).T).softmax(dim=1)


def centred_row(rows, head) -> torch.Tensor:
    """(Σ p² - p) h: the row proxy minus its mean over the word, (1 - Σ p²) h."""
    p = probabilities(rows, head)
    factor = p.square().sum(dim=1) - rows.logprob.exp()
    return factor[:, None] * rows.hidden


def surprise_alone(rows, head) -> torch.Tensor:
    """s = log p + H, without the state: [n, 1]."""
    return surprise(rows)[:, None]


def projected_word(rows, head) -> torch.Tensor:
    """(e_y - p) Ω on a few random directions Ω [V, DIRECTIONS], without the state."""
    p = probabilities(rows, head)
    generator = torch.Generator().manual_seed(0)
    omega = torch.randn(p.shape[1], DIRECTIONS, generator=generator).to(p)
    return omega[rows.token] - p @ omega


def projected_gradient(rows, head) -> torch.Tensor:
    """(e_y - p) Ω ⊗ h: the exact LM-head gradient with its words projected."""
    word = projected_word(rows, head)
    return (word[:, :, None] * rows.hidden[:, None, :]).flatten(1)


PROXIES: dict[str, Callable] = {
    "(1 - p) h": row_proxy,
    "the same - its batch mean": row_proxy,  # which weights_of_proxy subtracts
    "(Σp² - p) h": centred_row,
    "(log p + H) h": surprise_proxy,
    "log p + H": surprise_alone,
    "top-20: W_y - Ẽ W": partial(top_k_hidden_gradient, k=20),
    "W_y - E W": partial(top_k_hidden_gradient, k=10**6),  # of all words
    "(e_y - p) Ω": projected_word,
    "(e_y - p) Ω ⊗ h": projected_gradient,
    "(e_y - p) ⊗ h": lm_head_gradient,
}
BATCH_MEAN = "the same - its batch mean"
BESIDE = ("dapo", "no centroids", IN_RANGE)  # rows of the studies

# ---- the study -----------------------------------------------------------------------------------


PLACES = ("k12", "learn, k12")
SIZES = Sizes(batches=2, gradient_prompts=64)
HEAD = (
    "proxy",
    "mean over the word",
    "cos(μ₊, μ₋)",
    "sd/γ",
    "saturated",
    "cos K = 0",
    "cos K = 1",
    "sign K = 0",
    "sign K = 1",
    "like no centroids",
)


def proxies(args, sizes: Sizes = SIZES, places: Sequence[str] = PLACES) -> dict:
    """Proxies of mean zero and others: centroids, saturation and direction of the update.

    Two minutes on a free core. A table for each base model.
    """
    measured = {}
    for name in places:
        measured[name] = measured_at(SETTINGS[name], sizes)
        print(f"\n{name}: DelTA as published (K = 1), but for the proxy and K\n")
        print(table_line(HEAD))
        print("|---" * len(HEAD) + "|")
        for row, numbers in measured[name].items():
            print(table_line([row, *(shown(x) for x in numbers)]), flush=True)
    return measured


def shown(number: float) -> str:
    return "-" if np.isnan(number) else f"{number:.3f}"


def measured_at(place: Setting, sizes: Sizes) -> dict[str, list[float]]:
    """Row -> its numbers in the order of HEAD, means over the batches of a base."""
    torch.set_num_threads(1)
    lm, tokenizer = toy.load_base(place.base())
    problems = toy.problems(sizes.gradient_prompts, seed=6500, k=place.k)
    gradient = gradient_estimate(lm, tokenizer, problems, sizes.gradient_group, 550, place.tokens)

    found = {}
    for number in range(sizes.batches):
        problems = toy.problems(sizes.prompts, seed=8500 + number, k=place.k)
        graded = batch(lm, tokenizer, problems, sizes.group, 2500 + number, place.tokens)
        for row, numbers in of_batch(lm, graded, gradient).items():
            found.setdefault(row, []).append(numbers)
    return {row: np.mean(numbers, axis=0).tolist() for row, numbers in found.items()}


def of_batch(lm, graded: GradedBatch, gradient: torch.Tensor) -> dict[str, list[float]]:
    """Row -> its numbers on one batch, in the order of HEAD; NaN where a row has none."""
    control = weights_of("no centroids", lm, graded)
    weights = {(name, 1): weights_of(name, lm, graded) for name in BESIDE}
    numbers = {name: [np.nan] * 4 for name in BESIDE}
    for name, keep in PROXIES.items():
        tokens = packed_tokens(lm, graded.rollouts, graded.advantages, keep)
        if name == BATCH_MEAN:
            tokens.kept.values -= tokens.kept.values.mean(dim=0)
        mu_pos, mu_neg = centroids(tokens.kept, tokens.advantage)
        for K in (0, 1):
            row = weighed_by_delta(tokens, configured(Row(f"--K {K}"), [])[1])
            weights[name, K] = row.weights
        numbers[name] = [
            np.nan if name == BATCH_MEAN else mean_over_words(lm, graded, keep),
            cosine(mu_pos, mu_neg),
            np.mean(row.spread),
            np.mean(row.saturated),
        ]

    coefficients = torch.stack(list(weights.values())) * graded.tokens.advantage
    everything = torch.arange(len(graded.rollouts))
    updates = dict(
        zip(weights, directions(lm, graded.rollouts, coefficients, everything), strict=True)
    )
    sides = graded.tokens.advantage != 0
    for name in numbers:
        for move in (lambda x: x, torch.sign):
            for K in (0, 1):
                update = updates.get((name, K))
                numbers[name].append(np.nan if update is None else cosine(move(update), gradient))
        pair = torch.stack([weights[name, 1][sides], control[sides]])
        numbers[name].append(float(pair.corrcoef()[0, 1]))
    return {name: numbers[name] for name in (*BESIDE, *PROXIES)}


def mean_over_words(lm, graded: GradedBatch, keep: Callable) -> float:
    """‖E[v | state]‖ over the root of E[‖v‖² | state], of STATES states: 0 for a mean of zero.

    The expectation is over the word, by the policy.
    """
    states = packed_tokens(lm, graded.rollouts, graded.advantages, hidden_states).kept.values
    states = states[:: max(1, len(states) // STATES)]  # [S, H]
    W = lm.lm_head.weight.detach()
    logp = (states @ W.T).log_softmax(dim=1)  # [S, V]
    V = len(W)
    rows = SimpleNamespace(
        hidden=states.repeat_interleave(V, dim=0),
        token=torch.arange(V).repeat(len(states)),
        logprob=logp.flatten(),
        entropy=-(logp.exp() * logp).sum(dim=1).repeat_interleave(V),
    )
    v = keep(rows, lambda: W).unflatten(0, (-1, V))  # [S, V, F]
    p = logp.exp()[:, :, None]
    mean = (p * v).sum(dim=1).norm(dim=1)
    size = (p * v.square()).sum(dim=(1, 2)).sqrt()
    return float((mean.square().sum() / size.square().sum()).sqrt())


def hidden_states(rows, head) -> torch.Tensor:
    return rows.hidden
