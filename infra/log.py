"""Without this file a run would print nothing, and leave no metrics.jsonl and no samples.jsonl."""

import math
from datetime import timedelta

import torch

from infra.folder import append_line, read_lines
from infra.ranks import is_first_rank

EQUAL_REWARDS = (
    "all responses to a problem have had equal rewards, so nothing is learnt: see docs/running.md, "
    "When nothing is learnt"
)
LARGE_MISMATCH = 0.05  # nats; rounding in bfloat16 gives about 0.01

# The metrics in the line of a step
SHOWN = ["reward", "answered", "response_length", "entropy", "grad_norm", "clip_fraction"]
SCORES = ["eval_accuracy", "eval_reward", "eval_greedy"]
SHOWN += ["lambda_std", "seconds", *SCORES]


def introduce(run) -> None:
    """Print a run's size and folder before its first step."""
    if run.rank == 0:
        size = f"{run.policy.lm.num_parameters():,} parameters, {run.world} rank(s)"
        count = f"{len(run.problems)} problems for training, {len(run.held_out)} held out"
        print(f"{run.cfg.model}: {size}, {count}, {run.folder} after step {run.state.step}")


def shown_prompt(tokenizer, prompt: list[int], ends: list[int]) -> dict:
    """A prompt and the end tokens as texts, for config.json; the first rank prints them."""
    text, tokens = tokenizer.decode(prompt), [tokenizer.decode(token) for token in ends]
    if is_first_rank():
        ended = " or ".join(map(repr, tokens))
        print(f"a prompt: {text[:300]!r}; a response ends with {ended}", flush=True)
    return {"first_prompt": text, "end_tokens": tokens}


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
    if step == 3:  # rewards should differ by now
        hint_at_equal_rewards(run)


def print_summary(run) -> None:
    """Print the gain in accuracy, the output files, and the programs that draw them."""
    if run.rank > 0:
        return
    metrics = read_lines(run.folder / "metrics.jsonl")
    seconds = [line["seconds"] for line in metrics if "seconds" in line]
    gained = ""
    for name in SCORES:
        scored = [line for line in metrics if name in line]
        if scored and scored[0]["step"] == 0:
            gained += f"{name} {scored[0][name]:.3f} before and {scored[-1][name]:.3f} after, "
        elif scored:  # the line of step 0 is lost
            gained += f"{name} {scored[-1][name]:.3f} after, "
    print(
        f"done: {len(seconds)} steps in {sum(seconds):.0f} s, {gained}"
        f"model/, metrics.jsonl and samples.jsonl in {run.folder}\n"
        f"see it: python -m benchmarks.curves {run.folder}\n"
        f"        python -m benchmarks.samples {run.folder}"
    )


def hint_at_equal_rewards(run) -> None:
    """Print where to look if no group's rewards have differed so far."""
    steps = [line for line in read_lines(run.folder / "metrics.jsonl") if "reward" in line]
    if steps and all(line["without_advantage"] == 1 for line in steps):
        newest = steps[-1]
        print(
            f"{EQUAL_REWARDS} (in this step truncated is {newest['truncated']:.2g} and answered "
            f"{newest['answered']:.2g})",
            flush=True,
        )


def save_samples(run, step: int, rollouts: list, tokens, weight: torch.Tensor) -> None:
    """Append --samples responses to samples.jsonl, from a few groups spread over the batch.

    A group's first two rewards in the file differ if any of them do. Tests, which are often long,
    are left out; `lambda` is the token's ρ. rollouts, tokens, weight: as in train.train_step.
    """
    if run.rank > 0 or not run.cfg.samples:
        return
    G = run.cfg.group_size
    groups = min(len(rollouts) // G, math.ceil(run.cfg.samples / 2))
    each = min(G, math.ceil(run.cfg.samples / groups))  # responses of a group
    spread = range(0, len(rollouts) // G, len(rollouts) // G // groups)
    for g in spread[:groups]:
        rewards = [rollout.reward for rollout in rollouts[g * G : (g + 1) * G]]
        others = sorted(range(1, G), key=lambda j: rewards[j] == rewards[0])  # unequal ones first
        for j in [0, *others][:each]:
            problem, response = rollouts[g * G + j].problem, rollouts[g * G + j].response
            span = tokens.span(g * G + j)  # the response's tokens
            sample = {
                "step": step,
                **{key: problem[key] for key in problem if key not in ("tests", "record")},
                "group": g,
                "group_rewards": rewards,
                "reward": rewards[j],
                "truncated": response.truncated,
                "advantage": float(tokens.advantage[span.start]),
                "response": response.text,
                "tokens": [run.tokenizer.decode([token]) for token in response.tokens],
                "lambda": weight[span].tolist(),
                "logprob": tokens.old_logprob[span].tolist(),
                "entropy": tokens.entropy[span].tolist(),
            }
            append_line(run.folder / "samples.jsonl", sample)


def print_response(tokenizer, rollouts, A: torch.Tensor, rho: torch.Tensor) -> None:
    """Print the response with the largest |A|: its reward, its A, and ρ after each token.

    rollouts, A, rho: as in minimal.train_step.
    """
    first = int(A.abs().argmax())  # its first token, among N
    i = rollouts.is_token.nonzero()[first, 0]  # its row, among B
    tokens = rollouts.ids[i][rollouts.is_token[i]]
    words = [word.strip() or "newline" for word in tokenizer.batch_decode(tokens[:, None])]
    of_words = rho[first : first + len(tokens)].tolist()
    text = "  ".join(f"{word}({w:.2f})" for word, w in zip(words, of_words, strict=True))
    print(f"reward {rollouts.rewards[i]:.0f}, A {A[first]:.2f}: {text}", flush=True)
