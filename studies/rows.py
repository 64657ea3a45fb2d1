"""The rows in the studies: each row is one way to weight tokens.

`methods` runs all of MAIN and SECONDARY. Add a new row to STATIC, and a new proxy to PROXIES.
The credit study uses all of STATIC, and a training study may name any row.
MEAN_ZERO contains the rows for the zero-mean proxies, BEYOND the rows from other papers.

The oracles use the marks from `toy.decisive`. The advantage Q - V from studies/truth.py would be a
better ground truth, but takes thousands of continuations per response, and a run samples thousands
of responses.

Shapes: B responses, N packed response tokens.
"""

from dataclasses import dataclass, replace

import torch

import ablations
import toy
import train
from batch import TokenBatch
from methods import METHODS, Method


@dataclass(frozen=True)
class Row:
    """A method and its flags, or oracle weights, which only the toy has."""

    flags: str = "--method dapo"  # for train.py
    paper: str = "-"  # the paper's average for 8B, in percent
    permuted: bool = False  # the weights are computed from rewards permuted within groups
    oracle: tuple[float, float] | None = None  # weights for (other, decisive) tokens
    results: bool = False  # the weights favour result tokens: `result_weights`

    @property
    def spelled(self) -> str:
        """The flags as shown in tables."""
        if self.oracle or self.results:
            return "toy only"
        return f"`{self.flags}`{', permuted' if self.permuted else ''}"


# ---- rows in `methods` ---------------------------------------------------------------------------

ORACLE = "oracle"
IN_RANGE = "oracle in range"  # between λ_min and λ_max

MAIN = {
    "dapo": Row("--method dapo", "22.95"),
    "delta": Row("--method delta", "28.40"),
    "delta, fresh": Row("--gamma fresh"),
    "delta, K = 0": Row("--K 0", "19.97"),
    "delta, side": Row("--normalise side"),
    "delta, held out": Row("--centroids held_out"),
    "topk": Row("--proxy topk", "24.29"),
    "topk, fresh": Row("--proxy topk --gamma fresh"),
    "topk, K = 0": Row("--proxy topk --K 0"),
    "exact": Row("--proxy exact"),
    "exact, fresh": Row("--proxy exact --gamma fresh"),
    "random": Row("--delta-variant random", "18.34"),
    IN_RANGE: Row(oracle=(0.8, 1.2)),
    ORACLE: Row(oracle=(0.1, 1.1)),
}

# The rest of Tables 1 to 3 and of the analysis runs of Sec. 5.2. (The paper averages its
# main tables and its analysis runs over different benchmarks.)
SECONDARY = {
    "grpo": Row("--method grpo"),
    "reinforce": Row("--method reinforce"),
    "forking_tokens": Row("--method forking_tokens", "24.80"),
    "sapo": Row("--method sapo", "25.14"),
    "fipo": Row("--method fipo", "23.89"),
    "within_side": Row("--delta-variant within_side", "17.94"),
    "fixed_gamma": Row("--delta-variant fixed_gamma", "21.19"),
    "hard": Row("--delta-variant hard", "20.93"),
    "no_norm": Row("--delta-variant no_norm", "21.39"),
    "no_range_map": Row("--delta-variant no_range_map", "20.78"),
    "K = 2": Row("--K 2", "22.15"),
    "K = 3": Row("--K 3", "22.20"),
    "lam_min 0.5": Row("--lam-min 0.5", "23.22"),
    "lam_max 1.5": Row("--lam-max 1.5", "22.77"),
    "both": Row("--lam-min 0.5 --lam-max 1.5", "23.07"),
    "select top": Row("--select top"),
    "select random": Row("--select random"),
    "select bottom": Row("--select bottom"),
}

# The zero-mean proxies, also with permuted rewards or without refinement, and the control without
# centroids for each. `results` uses no centroids either: it favours the toy's result tokens.
MEAN_ZERO = {
    "centred": Row("--proxy centred"),
    "centred, K = 0": Row("--proxy centred --K 0"),
    "centred, no centroids": Row("--proxy centred --delta-variant no_centroids"),
    "results": Row(results=True),
    "surprise": Row("--proxy surprise"),
    "surprise, permuted": Row("--proxy surprise", permuted=True),
    "no centroids": Row("--delta-variant no_centroids"),
}

# Advantages from other papers, expressed as weights.
BEYOND = {
    "w_reinforce": Row("--method w_reinforce"),
    "opo": Row("--method opo"),
    "otb": Row("--method otb"),
}

# ---- rows in the credit study --------------------------------------------------------------------

# --proxy -> its name in tables
PROXIES = {"lm_head": "row", "topk": "top-K", "exact": "exact", "surprise": "surprise"}
FRESH, SIDE, HELD_OUT = "--gamma fresh", "--normalise side", "--centroids held_out"
FORMS = {  # DelTA with one proxy: as published (K = 1), the interventions, and controls
    "K = 0": Row("--K 0"),
    "K = 1": Row(""),
    "fresh": Row(FRESH),
    "side": Row(SIDE),
    "held out": Row(HELD_OUT),
    "all three": Row(f"{FRESH} {SIDE} {HELD_OUT}"),
    "permuted": Row("", permuted=True),
    "permuted, held out": Row(HELD_OUT, permuted=True),
}
STATIC = {
    "dapo": MAIN["dapo"],
    "forking_tokens": SECONDARY["forking_tokens"],
    "random": MAIN["random"],
    IN_RANGE: MAIN[IN_RANGE],
    ORACLE: MAIN[ORACLE],
    "no centroids": MEAN_ZERO["no centroids"],
}
for proxy in PROXIES:
    for form, row in FORMS.items():
        STATIC[f"{proxy}, {form}"] = replace(row, flags=f"--proxy {proxy} {row.flags}".strip())

ROWS = MAIN | SECONDARY | MEAN_ZERO | BEYOND | STATIC

# ---- weights of the rows -------------------------------------------------------------------------


def configured(row: Row, flags: list[str]) -> tuple[Method, train.Config]:
    """A row's method and settings for train.py's loop. flags: appended to the row's flags."""
    cfg = train.parse_config([*row.flags.split(), *flags])
    method = ablations.configured(METHODS[cfg.method], cfg)

    def oracle(tokens: TokenBatch, cfg: train.Config) -> torch.Tensor:
        return oracle_weights(decisive_tokens(tokens), row.oracle)

    def by_result(tokens: TokenBatch, cfg: train.Config) -> torch.Tensor:
        return result_weights(tokens)

    def deceived(tokens: TokenBatch, cfg: train.Config) -> torch.Tensor:
        return method.weights(with_permuted_rewards(tokens, cfg.group_size), cfg)

    if row.oracle:
        return Method(weights=oracle), cfg
    if row.results:
        return Method(weights=by_result), cfg
    if row.permuted:
        return replace(method, weights=deceived), cfg
    return method, cfg


def oracle_weights(decisive: torch.Tensor, weights: tuple[float, float]) -> torch.Tensor:
    """ρ [N] with mean 1 from the marks [N]. weights: for other tokens and decisive tokens."""
    rho = torch.where(decisive, weights[1], weights[0])
    return rho / rho.mean()


def result_weights(tokens: TokenBatch) -> torch.Tensor:
    """ρ [N] with mean 1, in proportion to 1.1 for a result and 0.1 for any other token.

    In a wrong response (A < 0) a result has 0.1 + 1 - p: a likely result is rarely the error.
    """
    responses = tokens.token.split(tokens.length.tolist())
    is_result = torch.cat([toy.states_result(ids) for ids in responses])  # [N]
    extra = torch.where(tokens.advantage < 0, -torch.expm1(tokens.logprob), 1.0)
    rho = 0.1 + is_result * extra
    return rho / rho.mean()


def decisive_tokens(tokens: TokenBatch) -> torch.Tensor:
    """Which tokens decided the reward, according to the problem's toy task: bool [N]."""
    marks = []
    responses = tokens.token.split(tokens.length.tolist())
    for problem, ids in zip(tokens.problems, responses, strict=True):
        task = toy.code_task if "tests" in problem else toy
        marks.append(task.decisive(problem["problem"], ids))
    return torch.cat(marks)


def with_permuted_rewards(tokens: TokenBatch, group: int) -> TokenBatch:
    """The tokens, with advantages permuted inside each group by the tokens' generator."""
    first = tokens.length.cumsum(0) - tokens.length  # index of each response's first token
    advantages = permuted(tokens.advantage[first], group, tokens.generator.initial_seed())
    return replace(tokens, advantage=advantages.repeat_interleave(tokens.length))


def permuted(advantages: torch.Tensor, group: int, seed: int) -> torch.Tensor:
    """The advantages, randomly permuted inside each group: [B]."""
    groups = advantages.view(-1, group)
    uniform = torch.rand(groups.shape, generator=torch.Generator().manual_seed(seed))
    return groups.gather(1, uniform.argsort(dim=1)).flatten()
