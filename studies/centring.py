"""Which tokens the margins rank first if the proxy's factor or its centring changes (`centring`).

Four proxies along h: the factor is -p or log p, with its mean in each state or without it. As
published (K = 1), on committed base models. Adding a constant to a factor, such as 1 - p for -p,
changes the mean in each state but not the centred proxy.
"""

from dataclasses import replace

import torch

import toy
from ablations import centred_proxy, surprise_proxy
from delta import PAPER, delta_coefficients
from methods import row_proxy
from studies.credit import batch
from studies.ranking import auc
from studies.tables import print_table

BASES = {  # committed: operations, noise, regime
    "sharpen, 5 operations": (5, 0.2, "sharpen"),
    "sharpen, 12 operations": (12, 0.06, "sharpen"),
    "learn, 12 operations": (12, 0.02, "learn"),
}
BATCHES = 16  # of 16 prompts x 8 responses
LIMIT = 112  # tokens in a response


def log_p_proxy(rows, head) -> torch.Tensor:
    """v = (log p) h: the surprise proxy with its mean in each state, -entropy h: [n, H]."""
    return rows.logprob[:, None] * rows.hidden


PROXIES = {
    "(1 - p) h": row_proxy,
    "(Σ p² - p) h": centred_proxy,
    "(log p) h": log_p_proxy,
    "(log p + entropy) h": surprise_proxy,
}


def centring(args) -> dict[str, dict[str, list[float]]]:
    """How four proxies along h rank the decisive tokens, and how far scores saturate (2 minutes).

    Prints, for each side, the margins' AUC for the decisive tokens and their standard deviation
    over the γ in use, as means over batches.
    """
    found = {}
    for name, (k, noise, regime) in BASES.items():
        lm, tokenizer = toy.base_model(k=k, noise=noise, regime=regime)
        batches = []
        for number in range(BATCHES):
            problems = toy.problems(16, seed=8000 + number, k=k)
            batches.append(numbers_of_batch(lm, tokenizer, problems, 2000 + number))
        means = torch.tensor(batches).mean(dim=0)  # [proxies, 4]
        found[name] = dict(zip(PROXIES, means.tolist(), strict=True))
        lines = [[proxy, *(f"{x:.3f}" for x in cells)] for proxy, cells in found[name].items()]
        print_table([f"proxy, {name}", "AUC pos", "AUC neg", "sd/γ pos", "sd/γ neg"], lines)
    return found


def numbers_of_batch(lm, tokenizer, problems: list[dict], seed: int) -> list[list[float]]:
    """The printed numbers of one batch: a line for each proxy."""

    def all_proxies(rows, head) -> torch.Tensor:
        """[n, proxies, H]."""
        return torch.stack([proxy(rows, head) for proxy in PROXIES.values()], dim=1)

    graded = batch(lm, tokenizer, problems, 8, seed, LIMIT, keep=all_proxies)
    advantage = graded.tokens.advantage
    lines = []
    for v in graded.tokens.kept.values.unbind(dim=1):
        margins, gammas = last_margins(v, advantage)
        aucs, spreads = [], []
        for side, gamma in zip((advantage > 0, advantage < 0), gammas, strict=True):
            aucs.append(auc(margins[side], graded.decisive[side]))
            spreads.append(float(margins[side].double().std(correction=0) / gamma))
        lines.append([*aucs, *spreads])
    return lines


def last_margins(v: torch.Tensor, advantage: torch.Tensor) -> tuple[torch.Tensor, tuple]:
    """Δ⁽¹⁾ [N] and the (γ₊, γ₋) that divide it. Margins rank tokens as scores do, without ties."""
    seen = []

    def scores(delta, advantage, *gamma):
        seen.append((delta, gamma))
        return PAPER.scores(delta, advantage, *gamma)

    delta_coefficients(v, advantage, pieces=replace(PAPER, scores=scores))
    return seen[-1]
