"""The first rank's reports: a line per step, metrics.jsonl and samples.jsonl."""

from datetime import timedelta

import torch

from infra.errors import printable
from infra.folder import append_line, read_json, read_lines

GROUPS = 4  # groups per step whose responses are saved
LARGE_MISMATCH = 0.05  # nats; rounding in bfloat16 gives about 0.01

# The metrics in the line of a step
SHOWN = [
    "reward",
    "answered",
    "response_length",
    "entropy",
    "grad_norm",
    "clip_fraction",
    "lambda_std",
]
SHOWN += ["seconds", "eval_accuracy", "eval_greedy"]


def introduce(run) -> None:
    """Print a run's size, folder, first prompt and end tokens before its first step."""
    if run.rank == 0:
        size = f"{run.policy.lm.num_parameters():,} parameters, {run.world} rank(s)"
        count = f"{len(run.problems)} problems for training, {len(run.held_out)} held out"
        line = f"{run.cfg.model}: {size}, {count}, {run.folder} after step {run.state.step}"
        if run.state.step == run.cfg.steps:
            line += ", the last one: nothing is trained"
        print(printable(line))
        texts = read_json(run.folder / "config.json")
        ends = " or ".join(map(repr, texts["end_tokens"]))
        prompt = texts["first_prompt"][:300]
        print(f"a prompt: {prompt!r}; a response ends with {ends}", flush=True)


def log(run, metrics: dict) -> None:
    """Append a line to metrics.jsonl, send it to the tracker and print a summary."""
    step = metrics["step"]
    if run.rank > 0:
        return
    append_line(run.folder / "metrics.jsonl", metrics)
    if run.tracker:
        run.tracker.log({name: metrics[name] for name in metrics if name != "step"}, step=step)

    gist = [f"{name} {metrics[name]:.3g}" for name in SHOWN if name in metrics]
    mismatch = metrics.get("mismatch", 0)
    if not mismatch <= LARGE_MISMATCH:  # NaN too
        gist.append(f"mismatch {mismatch:.3g} nats: sampler and policy disagree")
    if "seconds" in metrics:
        left = metrics["seconds"] * (run.cfg.steps - step)  # without evaluations
        tokens = metrics["response_length"] * run.cfg.prompts * run.cfg.group_size
        gist.append(f"tokens/s {tokens / metrics['seconds']:.0f}")
        gist.append(f"left {timedelta(seconds=round(left))}")
    print(f"step {step:4d}/{run.cfg.steps}  " + "  ".join(gist), flush=True)


def print_summary(run) -> None:
    """Print the gain in accuracy, the output files, and the programs that draw them."""
    if run.rank > 0:
        return
    metrics = read_lines(run.folder / "metrics.jsonl")
    seconds = [line["seconds"] for line in metrics if "seconds" in line]
    gained = ""
    for name in ("eval_accuracy", "eval_greedy"):
        accuracy = [line[name] for line in metrics if name in line]
        if accuracy:
            gained += f"{name} {accuracy[0]:.3f} before and {accuracy[-1]:.3f} after, "
    print(
        f"done: {len(seconds)} steps in {sum(seconds):.0f} s, {gained}"
        f"model/, metrics.jsonl and samples.jsonl in {run.folder}\n"
        f"see it: python -m benchmarks.curves {run.folder}\n"
        f"        python -m benchmarks.samples {run.folder}"
    )


def hint_at_equal_rewards(run, rollouts: list, metrics: dict) -> None:
    """If all rewards since step 1 are equal, print which cause in docs/running.md fits.

    rollouts: B train.Rollouts of the newest step. metrics: its metrics. Gold answers that nothing
    can match were counted before step 1 (infra/grading.py).
    """
    if run.rank > 0:
        return
    lines = read_lines(run.folder / "metrics.jsonl")
    earlier = [line["reward"] for line in lines if "reward" in line]  # not in step 0
    rewards = {*earlier, *(rollout.reward for rollout in rollouts)}
    if len(rewards) > 1:
        return

    cut_off, answered = metrics["truncated"], metrics["answered"]
    cause = "the problems are too hard, or their answers stand in another --answer-column"
    if max(rewards) > 0:
        cause = "the problems are too easy: take harder ones"
    elif cut_off > 0.5:
        cause = "responses are cut off: raise --max-new-tokens"
    elif answered < 0.5:
        cause = "the prompt does not lead to such an answer: change it with --prompt-template"
    print(
        f"every reward is {max(rewards):g}, so nothing is learned; {cut_off:.0%} of this step's "
        f"responses are cut off, and {answered:.0%} state an answer; perhaps {cause} "
        "(docs/running.md; samples.jsonl shows responses)",
        flush=True,
    )


def save_samples(run, step: int, rollouts: list, tokens, weight: torch.Tensor) -> None:
    """Append two responses from each of four groups, spread over the batch, to samples.jsonl.

    The two rewards differ if the group's do. Tests, which are often long, are left out; `lambda` is
    the token's ρ. rollouts, tokens, weight: as in train.train_step.
    """
    if run.rank > 0:
        return
    G = run.cfg.group_size
    count = len(rollouts) // G
    for g in range(0, count, max(1, count // GROUPS))[:GROUPS]:  # evenly spread
        group = rollouts[g * G : (g + 1) * G]
        rewards = [rollout.reward for rollout in group]
        differing = [j for j in range(G) if rewards[j] != rewards[0]]
        for j in (0, differing[0] if differing else 1):
            span = tokens.span(g * G + j)  # the response's tokens
            sample = {
                "step": step,
                **{key: cell for key, cell in group[j].problem.items() if key != "tests"},
                "group": g,
                "group_rewards": rewards,
                "reward": rewards[j],
                "truncated": group[j].response.truncated,
                "advantage": round(float(tokens.advantage[span.start]), 4),
                "response": group[j].response.text,
                "tokens": [run.tokenizer.decode([token]) for token in group[j].response.tokens],
                "lambda": weight[span].double().round(decimals=4).tolist(),
                "logprob": tokens.old_logprob[span].double().round(decimals=3).tolist(),
                "entropy": tokens.entropy[span].double().round(decimals=3).tolist(),
            }
            append_line(run.folder / "samples.jsonl", sample)
