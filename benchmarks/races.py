"""Twelve-step races: is DelTA more than DAPO at a higher learning rate?

    python -m benchmarks races  # prints the table of results/races.csv
    python -m benchmarks races --model MODEL --seeds 201-217

The second command first runs the races that the CSV lacks, one after the other, and appends a line
for each. It runs all rows of one seed before the next seed, because only complete seeds are
compared. A row is a method at a learning rate. Protocol and results: docs/results/races.md.

Shapes: n response tokens of a micro-batch, m of them in a block, V vocabulary size.
"""

import shlex
import subprocess
import tempfile
from argparse import ArgumentParser
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch

import train
from benchmarks.statistics import half_width, holm
from benchmarks.tables import print_table
from benchmarks.training import p_of, with_interval
from config import parse_config
from infra.head import block_size, scaled_logits
from infra.loading import decoder_of, load_model
from infra.micro_batches import MicroBatch, mini_batches
from infra.progress import Stopwatch
from infra.shared_prompts import shares_prompts, states
from rollout import Response
from toy.by_name import model_folder

STEPS = 12
SAMPLES = 8  # responses to each problem when the end of a race is measured
ROWS = {  # row -> its flags of train.py
    "dapo 5e-7": "--method dapo --lr 5e-7",
    "dapo 6e-7": "--method dapo --lr 6e-7",
    "delta 5e-7": "--method delta --lr 5e-7",
}
ON_A_GPU = {"scalar 5e-7": "--method delta --proxy scalar --lr 5e-7"}
FILE = Path("results/races.csv")
SUMS = Path("results/sums")
COMMON = (
    f"--data {SUMS}/short_train.jsonl --eval-data {SUMS}/short_test.jsonl "
    "--prompts 8 --group-size 8 --mini-batch 8 --max-new-tokens 24 --micro-batch-tokens 8192 "
    "--recompute False --dtype float32"
)
OUTCOMES = ("reward", "greedy", "entropy", "kl")
PRIMARY = (("delta 5e-7", "dapo 5e-7"), ("delta 5e-7", "dapo 6e-7"))


def races(args) -> None:
    """Run the races that args.flags name, if any, and print the table."""
    parser = ArgumentParser("python -m benchmarks races")
    parser.add_argument("--model", default="")
    parser.add_argument("--seeds", default="201-217", help="one, or the first and the last")
    args = parser.parse_args(args.flags)
    lines = pd.read_csv(FILE)
    if args.model:
        finished = set(zip(lines["row"], lines["seed"], strict=True))
        first, _, last = args.seeds.partition("-")
        rows = ROWS | (ON_A_GPU if torch.cuda.is_available() else {})
        for seed in range(int(first), int(last or first) + 1):
            for row, flags in rows.items():
                if (row, seed) not in finished:
                    line = pd.DataFrame([race(args.model, row, flags, seed)])
                    line.to_csv(FILE, mode="a", header=False, index=False)
    print_races(pd.read_csv(FILE))


# ---- a race --------------------------------------------------------------------------------------


def race(model: str, row: str, flags: str, seed: int) -> dict:
    """Train one row from the model for STEPS steps, and measure where it ends. Returns FILE's line.

    The steps are those of train.py with these flags. Nothing is evaluated or saved between them.
    """
    template = (SUMS / "short.txt").read_text()
    words = shlex.split(f"{flags} {COMMON} --steps {STEPS} --seed {seed}")
    words += ["--model", model, "--prompt-template", template]
    with tempfile.TemporaryDirectory() as folder:
        cfg = parse_config([*words, "--output-dir", f"{folder}/race"])
        run = train.prepare(cfg)
        for step in range(1, STEPS + 1):
            rollouts = train.sample(run, step, Stopwatch())
            train.train_step(run.policy, run.optimizer, run.method, rollouts, cfg, step)
    run.optimizer = None  # frees its memory
    found = dict(zip(OUTCOMES, outcomes(run), strict=True))
    shown = flags + f' {COMMON} --prompt-template "$(cat {SUMS}/short.txt)" --steps {STEPS}'
    print(row, seed, found, flush=True)
    return {
        "row": row,
        "seed": seed,
        **{name: f"{value:.6f}" for name, value in found.items()},
        "commit": commit(),
        "command": f"python train.py {shown} --seed {seed} --model {Path(model).name}",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "date": date.today().isoformat(),
    }


def commit() -> str:
    """The commit of this checkout, whose code ran."""
    where = Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=where, capture_output=True, text=True
    )
    return found.stdout.strip()


def outcomes(run) -> tuple[float, float, float, float]:
    """The OUTCOMES of a run's policy on all problems, sampled with the random numbers of step 0.

    reward: the mean of SAMPLES responses to each problem. greedy: the accuracy of the likeliest
    response. entropy and kl: means over the tokens of each problem's first sampled response.
    """
    cfg = run.cfg
    everything = SimpleNamespace(  # what graded_groups reads
        policy=run.policy,
        tokenizer=run.tokenizer,
        problems=run.problems + run.held_out,
        prompts=run.every_prompt(),
    )
    everyone = range(len(everything.problems))
    everything.cfg = replace(cfg, group_size=SAMPLES)
    sampled = train.graded_groups(everything, everyone, 0, Stopwatch())
    everything.cfg = replace(cfg, group_size=1, temperature=0.0)
    greedy = train.graded_groups(everything, everyone, 0, Stopwatch())
    rewards = [float(np.mean([x.reward for x in rollouts])) for rollouts in (sampled, greedy)]

    first = [x.response for x in sampled[::SAMPLES]]
    base, _ = load_model(model_folder(cfg))
    with run.policy.unsharded() as lm:
        return *rewards, *entropy_and_kl(lm, base, first, cfg.micro_batch_tokens)


@torch.no_grad()
def entropy_and_kl(
    lm, base, responses: list[Response], micro_batch_tokens: int
) -> tuple[float, float]:
    """(mean entropy H of π, mean KL(π ‖ base)) over the tokens of responses drawn from π, in nats.

    Both are exact sums over the vocabulary at each token's state; only the states are sampled.
    """
    together = shares_prompts(decoder_of(lm))
    everyone = torch.ones(len(responses))  # none has an advantage of 0: all take part
    count = len(responses)
    (plan,) = mini_batches(responses, everyone, count, micro_batch_tokens, together)
    totals = torch.zeros(2, dtype=torch.float64)
    for micro in plan.micro_batches:
        size = block_size(micro.ids.device, lm.config.vocab_size)
        blocks = [log_probabilities(model, micro, size) for model in (lm, base)]
        for logp, logq in zip(*blocks, strict=True):  # [m, V] each
            p = logp.exp()
            entropy = -(p * logp).sum(dim=1)
            kl = (p * (logp - logq)).sum(dim=1)
            totals += torch.stack([entropy.double().sum(), kl.double().sum()]).cpu()
    entropy, kl = (totals / plan.token_count).tolist()
    return entropy, kl


def log_probabilities(model, micro: MicroBatch, size: int):
    """log p over the vocabulary at a micro-batch's n response tokens, in blocks: yields [m, V]."""
    hidden = states(decoder_of(model), micro.ids, micro.mask)  # [n, H]
    head = list(model.get_output_embeddings().parameters())
    for block in hidden.split(size):
        yield scaled_logits(block, head, model.config, 1.0).log_softmax(dim=-1)


# ---- the table -----------------------------------------------------------------------------------


def print_races(lines: pd.DataFrame) -> None:
    """Print each row's outcomes, and the two primary contrasts, over the complete seeds."""
    table = lines.pivot(index="seed", columns="row", values=list(OUTCOMES))
    rows = [row for row in (*ROWS, *ON_A_GPU) if row in set(lines["row"])]
    whole = table.dropna()
    print(f"complete seeds: {list(whole.index)} of {list(table.index)}\n")
    print_table(
        ["row", *OUTCOMES],
        [[row, *(f"{whole[name, row].mean():.3f}" for name in OUTCOMES)] for row in rows],
    )
    if len(whole) < 2 or not set(ROWS) <= set(rows):
        print("an interval needs two complete seeds")
        return
    contrasts = {f"{a} - {b}": (a, b) for a, b in PRIMARY}
    p = holm({name: p_of(of(whole, "reward", *pair)) for name, pair in contrasts.items()})
    cells = []
    for name, pair in contrasts.items():
        differences = [with_interval(of(whole, outcome, *pair)) for outcome in OUTCOMES]
        cells.append([name, *differences, f"{p[name]:.2g}"])
    print_table(["contrast, 95 %", *OUTCOMES, "p of reward after Holm"], cells)
    at_equal_entropy = reward_at_equal_entropy(whole)
    print(f"delta - dapo, reward at equal entropy: {at_equal_entropy}\n")
    print(f"*{verdict(whole, p)}*")


def of(whole: pd.DataFrame, outcome: str, row: str, other: str) -> np.ndarray:
    """One row's outcome minus another's, for each seed."""
    return (whole[outcome, row] - whole[outcome, other]).to_numpy()


def reward_at_equal_entropy(whole: pd.DataFrame) -> str:
    """delta's reward minus dapo's on the line through dapo's two rates, at delta's mean entropy.

    The line goes through means over seeds, because the two entropies of one seed may be equal.
    """
    slow, fast = whole.xs("dapo 5e-7", axis=1, level=1), whole.xs("dapo 6e-7", axis=1, level=1)
    slope = (fast["reward"] - slow["reward"]).mean() / (fast["entropy"] - slow["entropy"]).mean()
    more = of(whole, "entropy", "delta 5e-7", "dapo 5e-7")
    return with_interval(of(whole, "reward", "delta 5e-7", "dapo 5e-7") - slope * more)


def verdict(whole: pd.DataFrame, p: dict[str, float]) -> str:
    """The verdict in the words of the protocol (docs/results/training.md)."""
    (first, of_first), (second, of_second) = p.items()
    above_dapo = of(whole, "reward", *PRIMARY[0])
    above_control = of(whole, "reward", *PRIMARY[1])
    greedy = of(whole, "greedy", *PRIMARY[1])
    if of_second <= 0.05 and above_control.mean() > 0 and greedy.mean() >= 0:
        return "more than a rate"
    reach = abs(above_control.mean()) + half_width(above_control)
    if reach <= 0.02 and of_first <= 0.05 and above_dapo.mean() > 0:
        return "a rate"
    return "not decided"
