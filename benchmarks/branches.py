"""The credit that tokens of real text deserve, measured by branching, and which rule points at it.

`python -m benchmarks branches FLAGS` continues prefixes of right and wrong responses in the batch
of `python -m benchmarks credit FLAGS`. V of a prefix is the share of continuations that are right;
V of the whole response is its reward. A segment is the text between two prefixes. Its credit is the
change of V in the direction of the response's advantage: up in a right response, down in a wrong
one. A rule of token weights points at credit if it gives more to the segments that have it.
"""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.credit import coefficients, proxies, sampled_batch
from benchmarks.tables import append_csv, print_table, read_csv
from config import parse_config
from grading import grade_all
from infra.ranks import computation_dtype
from infra.sampler import Running
from infra.tokens import end_tokens, text_decoder
from loading import load_model
from rollout import Sampling, generate, random_numbers
from toy.by_name import model_folder

COLUMNS = ("batch", "response", "reward", "start", "value", "continuations")
RESPONSES = 16  # of each reward
POINTS = 15  # prefixes of a response, at most
CONTINUATIONS = 12  # of each prefix
LARGE = 0.2  # a segment has credit if V changes by more than this
KEY = 77  # the seed of continuations


def chosen_responses(batch: dict) -> list[int]:
    """RESPONSES right and as many wrong complete responses of mixed groups, spread over groups."""
    G, rollouts = batch["G"], batch["rollouts"]
    R = torch.tensor([response.reward for response in rollouts])
    mixed = (R.view(-1, G).std(dim=1) > 0).nonzero().flatten().tolist()
    found = []
    for wanted in (1.0, 0.0):
        ranked = []  # (number within its group, index)
        for g in mixed:
            own = [i for i in range(g * G, (g + 1) * G) if R[i] == wanted]
            ranked += enumerate(i for i in own if not rollouts[i].truncated)
        found += [i for _, i in sorted(ranked)[:RESPONSES]]
    return found


def starts_of_segments(texts: list[str]) -> list[int]:
    """Where prefixes end: at the start, after sentences and lines, and before numbers."""
    points = {0}
    for t in range(1, len(texts)):
        ended = texts[t - 1].strip().endswith((".", "!", "?", ":")) or "\n" in texts[t - 1]
        number = texts[t].strip()[:1].isdigit() and not texts[t - 1].strip()[-1:].isdigit()
        if ended or number:
            points.add(t)
    points = sorted(points)
    index = np.linspace(0, len(points) - 1, min(POINTS, len(points))).round().astype(int)
    return [points[i] for i in sorted(set(index.tolist()))]


def branches(args) -> None:
    """Measure the values of prefixes that the CSV lacks, and print how each rule points."""
    path = Path(args.csv)
    cfg = parse_config(args.flags)
    batch = sampled_batch(cfg)
    name = Path(cfg.output_dir).name

    wanted = []  # (response, start of a segment)
    for i in chosen_responses(batch):
        first = int(batch["length"][:i].sum())
        texts = batch["texts"][first : first + int(batch["length"][i])]
        wanted += [(i, start) for start in starts_of_segments(texts)]
    lines = read_csv(path, COLUMNS).query("batch == @name")
    known = set(zip(lines["response"], lines["start"], strict=True))
    missing = [point for point in wanted if point not in known]
    if missing:
        measure(path, cfg, name, batch, missing)
    print_rules(batch, read_csv(path, COLUMNS).query("batch == @name"))


def measure(path: Path, cfg, name: str, batch: dict, points: list[tuple[int, int]]) -> None:
    """Append V of each point (response, start) to the CSV, once its continuations are sampled."""
    lm, tokenizer = load_model(model_folder(cfg), computation_dtype(cfg.dtype))
    ends, text = end_tokens(lm, tokenizer), text_decoder(tokenizer)
    sampling = Sampling(cfg.max_new_tokens, cfg.temperature, in_flight=cfg.in_flight)
    point_of = {}
    for i, start in points:
        rollout = batch["rollouts"][i]
        prompt = [*rollout.prompt, *rollout.tokens[:start].tolist()]
        for m in range(CONTINUATIONS):
            point_of[Running(prompt, random_numbers(KEY, i, start, m))] = i, start

    rewards = defaultdict(list)  # point -> R of its continuations
    for response in generate(lm, list(point_of), ends, sampling):
        i, start = point_of[response]
        rollout = batch["rollouts"][i]
        ids = response.tokens[len(rollout.prompt) :].tolist()
        own = rewards[i, start]
        own += grade_all([text(rollout.prompt, ids)], [rollout.problem], [ids[-1] not in ends])
        if len(own) == CONTINUATIONS:
            value = round(sum(own) / CONTINUATIONS, 4)
            line = (name, i, rollout.reward, start, value, CONTINUATIONS)
            append_csv(path, COLUMNS, [line])


def rules_of(batch: dict) -> dict[str, torch.Tensor]:
    """Each rule's weights [N]; the sign rules are the two signs of 1 - p, on either side."""
    v = proxies(batch)
    surprise = -torch.expm1(batch["logprob"])
    generator = torch.Generator().manual_seed(0)
    return {
        "delta": coefficients(batch, v["delta"], 1, False),
        "delta, K = 0": coefficients(batch, v["delta"], 0, False),
        "scalar": coefficients(batch, v["scalar"], 1, False),
        "topk": coefficients(batch, v["topk"], 1, False),
        "sure tokens up": -surprise,
        "unsure tokens up": surprise,
        "entropy": batch["entropy"],
        "random": torch.rand(len(surprise), generator=generator),
    }


def segments_of(batch: dict, lines: pd.DataFrame, rules: dict) -> pd.DataFrame:
    """A line for each segment: its response, reward, credit, and each rule's mean weight.

    A weight is relative to the mean over its response, so that responses can be pooled.
    """
    of_responses = {name: w.split(batch["length"].tolist()) for name, w in rules.items()}
    found = []
    for i, own in lines.sort_values("start").groupby("response"):
        R = batch["rollouts"][i].reward
        points = [*zip(own["start"], own["value"], strict=True), (int(batch["length"][i]), R)]
        for (start, V), (end, next_V) in pairwise(points):
            weights = {}
            for name, of_response in of_responses.items():
                weights[name] = float(of_response[i][start:end].mean() - of_response[i].mean())
            credit = (next_V - V) * (1 if R == 1 else -1)
            found.append({"response": i, "reward": R, "credit": credit, **weights})
    return pd.DataFrame(found)


def auc_of_credit(weights: np.ndarray, credit: np.ndarray) -> float:
    """The probability that a segment with credit has the larger weight; NaN if all are alike."""
    has_credit = credit > LARGE
    high, low = weights[has_credit][:, None], weights[~has_credit]
    if not high.size or not low.size:
        return np.nan
    return float((high > low).mean() + (high == low).mean() / 2)


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's, of two [n]; equal values share their mean rank."""
    return pd.Series(x).rank().corr(pd.Series(y).rank())


def print_rules(batch: dict, lines: pd.DataFrame) -> None:
    """Print how each rule points at credit on each side, with 95 % intervals over responses."""
    rules = rules_of(batch)
    segments = segments_of(batch, lines, rules)
    generator = np.random.default_rng(0)
    for side, R in (("right", 1.0), ("wrong", 0.0)):
        own = segments[segments["reward"] == R]
        of_responses = list(own.groupby("response").indices.values())  # places of their segments
        n = len(of_responses)
        draws = [generator.choice(n, n) for _ in range(1000)]
        resampled = [np.concatenate([of_responses[i] for i in draw]) for draw in draws]
        credit = own["credit"].to_numpy()
        cells = []
        for name in rules:
            weights = own[name].to_numpy()
            line = [name]
            for statistic in (auc_of_credit, rank_correlation):
                values = [statistic(weights[index], credit[index]) for index in resampled]
                low, high = np.nanquantile(values, [0.025, 0.975])
                line.append(f"{statistic(weights, credit):.2f} ({low:.2f} to {high:.2f})")
            cells.append(line)
        large = int((credit > LARGE).sum())
        print(f"{side}: {n} responses, {len(own)} segments, {large} with credit")
        print_table(["rule", "AUC", "rank correlation"], cells)
