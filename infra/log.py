"""What a run tells: a line a step, metrics.jsonl, samples.jsonl, curves.png."""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from infra.files import append_line, read_lines
from infra.packing import Rollouts, packed_rows
from infra.ranks import rank_and_world

SHOWN = (
    "reward",
    "response_length",
    "entropy",
    "grad_norm",
    "clip_fraction",
    "lambda_std",
    "seconds",
    "eval_accuracy",
)


def log(folder: Path, metrics: dict) -> None:
    """Append one line to metrics.jsonl and print the gist of it; the first rank's job."""
    rank, _ = rank_and_world()
    if rank > 0:
        return
    append_line(folder / "metrics.jsonl", metrics)
    gist = [f"{name} {metrics[name]:.3g}" for name in SHOWN if name in metrics]
    print(f"step {metrics['step']:4d}  " + "  ".join(gist), flush=True)


def save_samples(
    folder: Path,
    step: int,
    problems: list[dict],
    rollouts: Rollouts,
    rewards: torch.Tensor,
    weights: torch.Tensor,
    tokenizer,
    count: int = 4,
) -> None:
    """Append `count` responses, spread over the batch, to samples.jsonl; the first rank's job.

    problems: B; rewards: [B]; weights: [N], shown token by token as `lambda`.
    """
    rank, _ = rank_and_world()
    if rank > 0:
        return
    every = max(1, len(rollouts) // count)
    for i in range(0, len(rollouts), every):
        rows = packed_rows(torch.tensor([i]), rollouts.response_length.cpu())
        tokens = [tokenizer.decode([token]) for token in rollouts.response_ids(i).tolist()]
        sample = {
            "step": step,
            **problems[i],
            "reward": float(rewards[i]),
            "response": rollouts.texts[i],
            "tokens": tokens,
            "lambda": [round(weight, 4) for weight in weights[rows.to(weights.device)].tolist()],
        }
        append_line(folder / "samples.jsonl", sample)


def report(folder: Path) -> None:
    """Draw the curves and say where all is."""
    metrics = read_lines(folder / "metrics.jsonl")
    plot_curves(metrics, folder / "curves.png")

    seconds = sum(row.get("seconds", 0) for row in metrics)
    accuracy = [row["eval_accuracy"] for row in metrics if "eval_accuracy" in row]
    gained = ""
    if accuracy:
        gained = f"accuracy {accuracy[0]:.3f} before and {accuracy[-1]:.3f} after, "
    print(
        f"done: {metrics[-1]['step']} steps in {seconds:.0f} s, {gained}"
        f"model/, curves.png, metrics.jsonl and samples.jsonl in {folder}"
    )


PANELS = (
    ("reward", "share right"),
    ("response_length", "tokens"),
    ("entropy", "nats per token"),
)


def plot_curves(metrics: list[dict], path: Path) -> None:
    """Reward, response length and entropy against step, as in the paper's Fig. 2."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    for axes, (name, unit) in zip(panels, PANELS, strict=True):
        steps = [row["step"] for row in metrics if name in row]
        values = [row[name] for row in metrics if name in row]
        axes.plot(steps, values, color="#0072B2", label="training batch")
        axes.set(title=name.replace("_", " "), xlabel="step", ylabel=unit)

    evaluated = [row for row in metrics if "eval_accuracy" in row]
    if evaluated:
        steps = [row["step"] for row in evaluated]
        accuracy = [row["eval_accuracy"] for row in evaluated]
        panels[0].plot(steps, accuracy, "o-", color="#D55E00", label="held-out problems")
    panels[0].legend()
    figure.savefig(path, dpi=120)
