"""What DelTA gives to the tokens of real text. No training.

    python -m benchmarks credit --model FOLDER --data FILE --prompts 64 --output-dir RUN ...

takes the flags of train.py, samples one rollout batch, keeps it in --output-dir, and appends the
statistics of each rule's weights to the CSV. The folder's name is the batch's name there. Protocol
and results: docs/results/real.md.

Shapes: N response tokens of a batch, H hidden size.
"""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import train
from ablations import top_k_hidden_gradient
from batch import packed, plan_mini_batches
from benchmarks.tables import append_csv, print_frame, read_csv
from config import Config, parse_config
from delta import delta_coefficients
from grpo import group_advantages
from infra.errors import UserError
from infra.log import save_samples
from infra.progress import Stopwatch
from infra.ranks import this_device
from methods import correlation
from policy import TokenOutputs, old_log_probabilities, scaled_head

COLUMNS = ("batch", "pool", "rule", "side", "statistic", "value")
TOP_K = 20
KINDS = {  # kind of token -> what its text matches, without spaces around it; the first one counts
    "end": r"<\|.*\|>|</s>|<end_of_turn>|<eos>",
    "space": r"",
    "digits": r"[\d.,]*\d[\d.,]*",
    "operator": r"[-+*/=<>×÷·%^]+",
    "LaTeX": r"\\.*|frac|times|text|boxed|div|cdot|left|right",
    "word": r"[^\W\d_]+'?[^\W\d_]*",
    "punctuation": r".*",
}


# ---- the batch -----------------------------------------------------------------------------------


def sampled_batch(cfg: Config) -> dict:
    """The rollout batch that cfg describes, from --output-dir if it is there already.

    Returns rollouts, A, log p, entropy, Σ p² [N], states h and top-K proxies [N, H] (0 where A is
    0), the texts of tokens [N], lengths [B] and G.
    """
    path = Path(cfg.output_dir) / "batch.pt"
    if path.exists():
        return torch.load(path, weights_only=False)

    run = train.prepare(cfg)
    rollouts, _ = train.sample(run, 1, Stopwatch())
    rewards = torch.tensor([response.reward for response in rollouts])
    advantages = group_advantages(rewards, cfg.group_size)
    if not advantages.any():
        raise UserError(f"--data {cfg.data}: all groups have equal rewards: take other problems")
    plan = plan_mini_batches(rollouts, advantages, len(rollouts), cfg.micro_batch_tokens)

    def features(outputs, head) -> torch.Tensor:
        return torch.cat([outputs.hidden, outputs.mean_p[:, None]], dim=1)  # [n, H + 1]

    logprob, entropy, rows = old_log_probabilities(run.policy, plan, features)
    tokens = packed(rollouts, rewards, advantages, logprob, entropy)
    found = torch.empty(rows.shape, device=this_device())
    for index, part in rows.parts:
        found[index] = part.float()
    hidden, mean_p = found[:, :-1], found[:, -1]

    own = tokens.advantage != 0  # no λ depends on another's v, which costs a product with the head
    outputs = TokenOutputs(logprob[own], entropy[own], mean_p[own], hidden[own], tokens.token[own])
    top_k = torch.zeros_like(hidden)
    head = partial(scaled_head, run.policy.lm, run.policy.temperature)
    top_k[own] = top_k_hidden_gradient(outputs, head, TOP_K)
    tensors = {
        "advantage": tokens.advantage,
        "logprob": logprob,
        "entropy": entropy,
        "hidden": hidden,
        "top_k": top_k,
        "mean_p": mean_p,
        "length": tokens.length,
    }
    batch = {name: tensor.cpu() for name, tensor in tensors.items()}
    texts = [run.tokenizer.decode([token]) for token in tokens.token.tolist()]
    batch |= {"rollouts": rollouts, "texts": texts, "G": cfg.group_size}
    torch.save(batch, path)
    weight = coefficients(batch, proxies(batch)["delta"], cfg.K, apart=False)
    save_samples(run, 1, rollouts, tokens, weight)  # for benchmarks.picture and benchmarks.samples
    return batch


def proxies(batch: dict) -> dict[str, torch.Tensor]:
    """Each proxy's v [N, H] or [N, 1]."""
    p, h = batch["logprob"].exp(), batch["hidden"]
    surprise = -torch.expm1(batch["logprob"])
    return {
        "delta": surprise[:, None] * h,
        "scalar": surprise[:, None],
        "centred": (batch["mean_p"] - p)[:, None] * h,
        "topk": batch["top_k"],
        "without mean state": surprise[:, None] * (h - h.mean(dim=0)),
        "state alone": h,
    }


def coefficients(batch: dict, v: torch.Tensor, K: int, apart: bool) -> torch.Tensor:
    """λ̄ [N] over the batch, or if `apart` over each problem's group for itself."""
    A = batch["advantage"]
    if not apart:
        return delta_coefficients(v, A, K)
    sizes = batch["length"].view(-1, batch["G"]).sum(dim=1).tolist()  # tokens of each group
    parts = zip(v.split(sizes), A.split(sizes), strict=True)
    return torch.cat([delta_coefficients(own, a, K) for own, a in parts])


# ---- statistics ----------------------------------------------------------------------------------


def kind_of(text: str) -> str:
    """The kind of a token, such as `digits` for ` 12`."""
    stripped = text.strip()
    return next(kind for kind, form in KINDS.items() if re.fullmatch(form, stripped, re.DOTALL))


def explained(lam: torch.Tensor, p: torch.Tensor, states: torch.Tensor) -> tuple[float, float]:
    """(R² given p alone, R² given the state alone) of λ [n], each on the half not fitted.

    Given p: the mean in 50 bins of equal count. Given the state: ridge regression on [n, H].
    """
    half = torch.arange(len(lam)) % 2 == 0
    y = lam.double()
    edges = p[half].double().quantile(torch.linspace(0, 1, 51, dtype=torch.float64)[1:-1])
    bins = torch.bucketize(p.double(), edges)  # [n] 0 to 49
    count = torch.bincount(bins[half], minlength=50)
    total = torch.bincount(bins[half], y[half], minlength=50)
    by_p = torch.where(count > 0, total / count, y[half].mean())[bins]

    x = states.double() - states[half].double().mean(dim=0)
    gram = x[half].T @ x[half]
    ridge = 1e-3 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    slope = torch.linalg.solve(gram + ridge, x[half].T @ (y[half] - y[half].mean()))
    by_state = y[half].mean() + x @ slope

    left = (y - y[half].mean())[~half].square().sum()
    errors = [(y - fitted)[~half].square().sum() for fitted in (by_p, by_state)]
    return tuple(float(1 - error / left) for error in errors)


def first_order(batch: dict) -> list[tuple]:
    """(side, statistic, value): the correlation of K = 0 margins with s = 1 - p, predicted and not.

    With v = s h, d = μ₊ - μ₋ and x = h·d a margin is ± 2 s x up to a constant. If s and x are
    independent on a side, its correlation with s is
    ± sign(x̄) / sqrt(1 + (σ_x / x̄)² E[s²] / Var s).
    If h varied little around its mean m, x̄ would be (s̄₊ - s̄₋) ‖m‖². docs/results/real.md derives
    both.
    """
    A, h = batch["advantage"].double(), batch["hidden"].double()
    s = -torch.expm1(batch["logprob"].double())
    share = {"A > 0": A.clamp(min=0), "A < 0": (-A).clamp(min=0)}
    share = {name: mass / mass.sum() for name, mass in share.items()}  # [N] each
    surprise = {name: float(w @ s) for name, w in share.items()}  # s̄₊, s̄₋
    d = (share["A > 0"] - share["A < 0"]) @ (s[:, None] * h)
    m = (share["A > 0"] + share["A < 0"]) @ h / 2
    difference = surprise["A > 0"] - surprise["A < 0"]
    x = h @ d  # [N]

    found = [("both", "‖m‖²", float(m @ m)), ("both", "x̄, first order", float(difference * m @ m))]
    for name, sign in (("A > 0", 1), ("A < 0", -1)):
        side = sign * A > 0
        own_x, own_s = x[side], s[side]
        spread = (own_x.std() / own_x.mean()) ** 2 * own_s.square().mean() / own_s.var()
        predicted = sign * torch.sign(own_x.mean()) / (1 + spread).sqrt()
        found += [
            (name, "s̄", surprise[name]),
            (name, "x̄", float(own_x.mean())),
            (name, "σ of x", float(own_x.std())),
            (name, "correlation of margins with 1 - p", correlation(sign * own_s * own_x, own_s)),
            (name, "the same, predicted", float(predicted)),
        ]
    return found


def statistics(batch: dict, lam: torch.Tensor, scalar: torch.Tensor) -> list[tuple]:
    """(side, statistic, value) of a rule's weights λ̄ [N], beside `scalar`'s."""
    A, p = batch["advantage"], batch["logprob"].exp()
    kinds = np.array([kind_of(text) for text in batch["texts"]])
    both = A != 0
    found = [("both", "correlation with scalar", correlation(lam[both], scalar[both]))]
    alike = (lam > lam[both].median()) == (scalar > scalar[both].median())
    found.append(("both", "same side of both medians", float(alike[both].float().mean())))
    for name, side in (("A > 0", A > 0), ("A < 0", A < 0)):
        own = lam[side]
        by_p, by_state = explained(own, p[side], batch["hidden"][side])
        found += [
            (name, "mean weight", float(own.mean())),
            (name, "mean 1 - p", float(1 - p[side].mean())),
            (name, "mass", float((lam * A.abs())[side].sum() / A.abs().sum())),
            (name, "correlation with 1 - p", correlation(own, 1 - p[side])),
            (name, "R² given p", by_p),
            (name, "R² given state", by_state),
        ]
        of_side = kinds[side.numpy()]
        for kind in KINDS:
            if (of_side == kind).any():
                mean = own[torch.from_numpy(of_side == kind)].mean() / own.mean()
                found.append((name, f"weight of {kind}", float(mean)))
    return found


def credit(args) -> None:
    """Append a batch's statistics to the CSV, unless they are there, and print all tables."""
    path = Path(args.csv)
    if args.flags:
        cfg = parse_config(args.flags)
        name = Path(cfg.output_dir).name
        if name not in set(read_csv(path, COLUMNS)["batch"]):
            append_csv(path, COLUMNS, measured(name, sampled_batch(cfg)))
    for name, lines in read_csv(path, COLUMNS).groupby("batch", sort=False):
        print_tables(name, lines)


def measured(name: str, batch: dict) -> list[tuple]:
    """The lines of the CSV for one batch, as COLUMNS names their cells."""
    v = proxies(batch)
    rules = [(proxy, 1, False) for proxy in v] + [("delta", 0, False), ("delta", 2, False)]
    rules += [("scalar", 0, False), ("delta", 1, True)]
    R = torch.tensor([response.reward for response in batch["rollouts"]])
    facts = {
        "responses": len(R),
        "tokens": len(batch["logprob"]),
        "share right": float(R.mean()),
        "truncated": sum(x.truncated for x in batch["rollouts"]) / len(R),
        "groups with both": int((R.view(-1, batch["G"]).std(dim=1) > 0).sum()),
    }
    lines = [("batch", "", "", *fact) for fact in facts.items()]
    lines += [("batch", "first order", *numbers) for numbers in first_order(batch)]
    for proxy, K, apart in rules:
        lam = coefficients(batch, v[proxy], K, apart)
        scalar = coefficients(batch, v["scalar"], K, apart)
        pool = "problem" if apart else "batch"
        for side, statistic, value in statistics(batch, lam, scalar):
            lines.append((pool, f"{proxy}, K = {K}", side, statistic, value))
    return [(name, *line) for line in lines]


def print_tables(name: str, lines: pd.DataFrame) -> None:
    """Print one batch's tables: facts, the first order, then a row for each rule and side."""
    is_fact = lines["rule"].isna()
    facts = zip(lines["statistic"][is_fact], lines["value"][is_fact], strict=True)
    print(f"**{name}**: " + ", ".join(f"{fact} {value:g}" for fact, value in facts))
    rules = lines[~is_fact].rename(columns={"pool": "pooled over"})
    tables = rules.groupby([rules["rule"] == "first order", "side"], sort=False)
    for (_, side), own in tables:
        own = own.rename(columns={"rule": f"{side}: rule"})
        index = [f"{side}: rule", "pooled over"]
        print_frame(own.pivot_table("value", index, "statistic", sort=False))
