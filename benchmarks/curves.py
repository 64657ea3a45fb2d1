"""The picture of a run: what train.py leaves as curves.png."""
from pathlib import Path

from matplotlib.figure import Figure


def plot_curves(rows: list[dict], path: Path) -> None:
    """Reward, response length and entropy against step, as in the paper's Fig. 2; held-out accuracy beside the reward."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, 3)
    for axis, key, unit in zip(axes, ("reward", "response_length", "entropy"), ("share right", "tokens", "nats per token")):
        axis.plot(*zip(*[(row["step"], row[key]) for row in rows if key in row]), color="#0072B2", label="training batch")
        axis.set(title=key.replace("_", " "), xlabel="step", ylabel=unit)
    if evals := [(row["step"], row["eval_accuracy"]) for row in rows if "eval_accuracy" in row]:
        axes[0].plot(*zip(*evals), "o-", color="#D55E00", label="held-out problems")
    axes[0].legend()
    figure.savefig(path, dpi=120)
