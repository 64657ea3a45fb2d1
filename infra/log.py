"""What the first rank reports: a line a step, metrics.jsonl, curves.png."""

from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from functools import wraps
from pathlib import Path

import torch
from matplotlib.figure import Figure

from infra.files import append_line, read_lines, writing
from infra.flags import spelled
from infra.packing import Rollouts, TokenBatch
from infra.ranks import rank_and_world, this_device
from infra.samples import write_page


def first_rank_only(function: Callable[..., None]) -> Callable[..., None]:
    """The function on the first rank, and nothing on the others."""

    @wraps(function)
    def on_first_rank(*arguments, **named):
        rank, _ = rank_and_world()
        if rank == 0:
            function(*arguments, **named)

    return on_first_rank


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


@first_rank_only
def log(folder: Path, metrics: dict, steps: int = 0, pace: str = "") -> None:
    """Append one line to metrics.jsonl and print the gist of it.

    steps: of the whole run; pace: what else to print, and not to keep.
    """
    append_line(folder / "metrics.jsonl", metrics)
    gist = [f"{name} {metrics[name]:.3g}" for name in SHOWN if name in metrics]
    if metrics.get("mismatch", 0) > LARGE_MISMATCH:
        gist.append(f"mismatch {metrics['mismatch']:.3g} nats: sampler and scoring disagree")
    if pace:
        gist.append(pace)
    of_all = f"/{steps}" if steps else ""
    print(f"step {metrics['step']:4d}{of_all}  " + "  ".join(gist), flush=True)


@first_rank_only
def introduce(run, method_flags: type) -> None:
    """Print what a run is before its first step.

    run: a train.Run; method_flags: the dataclass of the flags that say what the method is.
    """
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
        "problems": f"{len(run.problems)} for training, {len(run.held_out)} held out, "
        f"{run.dropped} dropped",
        "a prompt": repr(prompt),
        "folder": f"{run.folder}, {start}",
    }
    for name, fact in facts.items():
        print(f"{name:10s} {fact}", flush=True)


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
        "lambda_std": float(weights.std()),
        "lambda_above_one": float((weights > 1).float().mean()),
        **mismatch(tokens.logprob, tokens.sampled),
    }


def mismatch(logprob: torch.Tensor, sampled: torch.Tensor) -> dict:
    """How far the sampler's distribution is from the scored one: metrics of a step, in nats.

    logprob, sampled: [N] log-probabilities of the drawn tokens, as scored and as the sampler says;
    tokens of which it does not say are left out, and without any other there are no metrics. The KL
    divergence of the sampler from the scored policy is estimated by the mean of r - 1 - log r,
    r = π_score / π_sampler (Schulman 2020, "Approximating KL divergence"): unbiased, and no term is
    negative.
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


def pace(run, metrics: dict) -> str:
    """Response tokens per second of a step, and the time that is left without evaluations."""
    run.seconds.append(metrics["seconds"])
    tokens = metrics["response_length"] * run.cfg.prompts * run.cfg.group_size
    recent = run.seconds[-20:]
    left = sum(recent) / len(recent) * (run.cfg.steps - metrics["step"])
    return f"tokens/s {tokens / metrics['seconds']:.0f}  left {timedelta(seconds=round(left))}"


@first_rank_only
def hint_without_signal(run, advantages: torch.Tensor) -> None:
    """After ten steps in a row in which all rewards of each group are equal, say so once."""
    run.without_signal = 0 if advantages.any() else run.without_signal + 1
    if run.without_signal == 10:
        print(
            "hint: in ten steps no group had unequal rewards, so nothing is learnt. Are responses "
            "cut off (`truncated`)? Is the answer where verify.py looks (samples.jsonl)? Are the "
            "problems far too hard or easy? --dynamic-sampling and a larger --group-size help",
            flush=True,
        )


@first_rank_only
def hint_about_mean(run, weights: torch.Tensor) -> None:
    """In the first step of a program, say so if the mean of the token weights [N] is not 1."""
    mean = float(weights.mean())
    if run.seconds or abs(mean - 1) < 0.01:
        return
    print(
        f"hint: the token weights of --method {run.cfg.method} have mean {mean:.3g}, not 1, and so "
        "have loss and gradient. Divide the weights by their mean, unless the method is defined "
        "without that, as --delta-variant no_norm is",
        flush=True,
    )


@first_rank_only
def draw_curves(folder: Path) -> None:
    """curves.png and samples.html of the run so far."""
    plot_curves(read_lines(folder / "metrics.jsonl"), folder / "curves.png")
    write_page(folder)


@first_rank_only
def report(folder: Path) -> None:
    """Draw the pictures and print where everything is."""
    draw_curves(folder)
    metrics = read_lines(folder / "metrics.jsonl")

    seconds = sum(row.get("seconds", 0) for row in metrics)
    gained = ""
    for name, words in (("eval_accuracy", "accuracy"), ("eval_greedy", "greedy")):
        found = [row[name] for row in metrics if name in row]
        if found:
            gained += f"{words} {found[0]:.3f} before and {found[-1]:.3f} after, "
    print(
        f"done: {metrics[-1]['step']} steps in {seconds:.0f} s, {gained}"
        f"model/, curves.png, samples.html and metrics.jsonl in {folder}"
    )


PANELS = (
    ("reward", "share right"),
    ("response_length", "tokens"),
    ("entropy", "nats per token"),
)


EVALUATED = (  # name, label, style
    ("eval_accuracy", "held-out, sampled", "o-"),
    ("eval_greedy", "held-out, greedy", "s--"),
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

    for name, label, style in EVALUATED:
        rows = [row for row in metrics if name in row]
        if rows:
            steps = [row["step"] for row in rows]
            panels[0].plot(steps, [row[name] for row in rows], style, color="#D55E00", label=label)
    panels[0].legend()
    with writing(path):
        figure.savefig(path, dpi=120)
