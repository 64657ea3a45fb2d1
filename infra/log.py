"""Reports by the first rank: a line per step, metrics.jsonl, curves.png."""

from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import torch
from matplotlib.figure import Figure

from infra.files import append_line, read_lines, writing
from infra.flags import spelled
from infra.packing import Rollouts, TokenBatch
from infra.ranks import this_device
from infra.samples import write_page

LARGE_MISMATCH = 0.05  # nats; rounding in bfloat16 gives about 0.01

SHOWN = (
    "reward",
    "response_length",
    "entropy",
    "grad_norm",
    "clip_fraction",
    "lambda_std",
    "seconds",
    "eval_accuracy",
    "eval_greedy",
)


# ---- a line per step -----------------------------------------------------------------------------


def log(run, metrics: dict) -> None:
    """Append a line to metrics.jsonl and print a summary. After an evaluation, draw the curves."""
    if run.rank > 0:
        return
    append_line(run.folder / "metrics.jsonl", metrics)
    if run.track:
        run.track(metrics)
    gist = [f"{name} {metrics[name]:.3g}" for name in SHOWN if name in metrics]
    if metrics.get("mismatch", 0) > LARGE_MISMATCH:
        gist.append(f"mismatch {metrics['mismatch']:.3g} nats: sampler and scoring disagree")
    if "seconds" in metrics:
        gist += pace(run, metrics)
    print(f"step {metrics['step']:4d}/{run.cfg.steps}  " + "  ".join(gist), flush=True)
    if "lambda_mean" in metrics:
        print_hints(run, metrics)
    if "eval_accuracy" in metrics:
        plot_curves(read_lines(run.folder / "metrics.jsonl"), run.folder / "curves.png")
        write_page(run.folder)


def pace(run, metrics: dict) -> list[str]:
    """Response tokens per second of a step, and the remaining time, excluding evaluations."""
    run.seconds.append(metrics["seconds"])
    tokens = metrics["response_length"] * run.cfg.prompts * run.cfg.group_size
    recent = run.seconds[-20:]
    left = sum(recent) / len(recent) * (run.cfg.steps - metrics["step"])
    return [f"tokens/s {tokens / metrics['seconds']:.0f}", f"left {timedelta(seconds=round(left))}"]


def print_hints(run, metrics: dict) -> None:
    """Print a hint once if ten consecutive steps had no signal, or the mean weight is not 1."""
    silent = metrics["grad_norm"] == 0 and metrics["skipped_updates"] == 0
    run.without_signal = run.without_signal + 1 if silent else 0
    if run.without_signal == 10:
        print(
            "hint: in ten steps no group had unequal rewards, so nothing is learnt. Are responses "
            "cut off (`truncated`)? Does verify.py find the answers (samples.jsonl)? Are the "
            "problems far too hard or easy? --dynamic-sampling and a larger --group-size help",
            flush=True,
        )
    mean = metrics["lambda_mean"]
    if len(run.seconds) == 1 and abs(mean - 1) >= 0.01:  # the program's first step
        print(
            f"hint: the token weights of --method {run.cfg.method} have mean {mean:.3g}, not 1, "
            "which scales loss and gradient. Divide them by their mean, unless the method is "
            "defined without this, like --delta-variant no_norm",
            flush=True,
        )


def rollout_metrics(
    rollouts: Rollouts, rewards: torch.Tensor, tokens: TokenBatch, weights: torch.Tensor
) -> dict:
    """The metrics of a rollout batch, at θ_old; docs/running.md explains each.

    rewards: [B]; weights: ρ [N].
    """
    return {
        "reward": float(rewards.mean()),
        "entropy": float(tokens.entropy.mean()),
        "response_length": float(tokens.length.float().mean()),
        "truncated": float(rollouts.truncated.float().mean()),
        "lambda_mean": float(weights.mean()),
        "lambda_std": float(weights.std()),
        "lambda_above_one": float((weights > 1).float().mean()),
        **mismatch(tokens.logprob, tokens.sampled),
    }


def mismatch(logprob: torch.Tensor, sampled: torch.Tensor) -> dict:
    """How far the sampler's distribution is from the scored one: metrics of a step, in nats.

    logprob, sampled: [N] log-probabilities of the drawn tokens, as scored and from the sampler.
    Tokens without a value from the sampler are left out; if none has one, there are no metrics. The
    KL divergence of the sampler from the scored policy is estimated by the mean of r - 1 - log r,
    r = π_score / π_sampler (Schulman 2020, "Approximating KL divergence"), which is unbiased and
    has no negative terms.
    """
    told = ~sampled.isnan()
    if not told.any():
        return {}
    log_ratio = (logprob - sampled)[told].double()
    return {
        "mismatch": float(log_ratio.abs().mean()),
        "mismatch_max": float(log_ratio.abs().max()),
        "mismatch_kl": float((log_ratio.expm1() - log_ratio).mean()),
    }


# ---- first and last lines ------------------------------------------------------------------------


def introduce(run, method_flags: type) -> None:
    """Print the settings of a run before its first step.

    method_flags: the dataclass of the flags that define the method.
    """
    if run.rank > 0:
        return
    cfg = run.cfg
    parameters = sum(p.numel() for p in run.policy.parameters())
    defaults = {each.name: each.default for each in fields(method_flags)}
    defaults["method"] = cfg.method
    if run.method.clips:
        defaults["clip_low"], defaults["clip_high"] = run.method.default_clip
    changed = [
        f"{spelled(name)} {getattr(cfg, name)}"
        for name, default in defaults.items()
        if getattr(cfg, name) != default
    ]
    prompt = run.tokenizer.decode(run.prompts[0])
    if len(prompt) > 300:
        prompt = prompt[:150] + " ... " + prompt[-150:]
    layout = "packed" if run.policy.packed else "padded"
    start = f"after step {run.state.step}" if run.state.step else "from the beginning"
    facts = {
        "model": f"{cfg.model}, {type(run.policy.lm).__name__}, {parameters:,} parameters",
        "ranks": f"{run.world} on {this_device().type}, micro-batches {layout}",
        "method": " ".join([cfg.method, *changed]),
        "problems": f"{len(run.problems)} for training, {len(run.held_out)} held out",
        "a prompt": repr(prompt),
        "folder": f"{run.folder}, {start}",
    }
    for name, fact in facts.items():
        print(f"{name:10s} {fact}", flush=True)


def report(run) -> None:
    """Draw the curves, and print the gain in accuracy and the output files."""
    if run.rank > 0:
        return
    metrics = read_lines(run.folder / "metrics.jsonl")
    plot_curves(metrics, run.folder / "curves.png")
    write_page(run.folder)

    seconds = sum(row.get("seconds", 0) for row in metrics)
    gained = ""
    for name, words in (("eval_accuracy", "accuracy"), ("eval_greedy", "greedy")):
        found = [row[name] for row in metrics if name in row]
        if found:
            gained += f"{words} {found[0]:.3f} before and {found[-1]:.3f} after, "
    print(
        f"done: {metrics[-1]['step']} steps in {seconds:.0f} s, {gained}"
        f"model/, curves.png, samples.html and metrics.jsonl in {run.folder}"
    )


# ---- curves.png ----------------------------------------------------------------------------------

ACCURACY = (  # metric, label, style; all are shares of right answers
    ("reward", "training batch", {"color": "#0072B2"}),
    ("eval_accuracy", "held out, sampled", {"color": "#D55E00", "marker": "o"}),
    ("eval_greedy", "held out, greedy", {"color": "#D55E00", "marker": "s", "linestyle": "--"}),
)
OTHERS = (  # metric, unit
    ("entropy", "nats per token"),
    ("grad_norm", "norm before clipping"),
    ("response_length", "tokens"),
)


def plot_curves(metrics: list[dict], path: Path) -> None:
    """Plot accuracy against the step, and each metric of OTHERS that changes."""
    moving = []
    for name, unit in OTHERS:
        values = {row[name] for row in metrics if name in row}
        if len(values) > 1:
            moving.append((name, unit))
    figure = Figure(figsize=(3.6 * (1 + len(moving)), 3.4), layout="constrained")
    accuracy, *others = figure.subplots(1, 1 + len(moving), squeeze=False)[0]
    for name, label, style in ACCURACY:
        draw(accuracy, metrics, name, label=label, **style)
    accuracy.set(title="accuracy", xlabel="step", ylabel="share right")
    if all(0 <= row.get("reward", 0) <= 1 for row in metrics):  # custom rewards may exceed this
        accuracy.set_ylim(0, 1)
    accuracy.legend()
    for axes, (name, unit) in zip(others, moving, strict=True):
        draw(axes, metrics, name, color="#0072B2")
        axes.set(title=name.replace("_", " "), xlabel="step", ylabel=unit)
        axes.set_ylim(bottom=0)  # none can be negative
    with writing(path):
        figure.savefig(path, dpi=120)


def draw(axes, metrics: list[dict], name: str, **style) -> None:
    """Draw the line of one metric over the steps that have it, if any."""
    rows = [row for row in metrics if name in row]
    if rows:
        axes.plot([row["step"] for row in rows], [row[name] for row in rows], **style)
