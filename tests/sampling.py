"""Samples groups of responses, as train.graded_groups does."""

from collections import Counter

from rollout import Response, rollout


def sampled(
    lm,
    tokenizer,
    prompts: list[list[int]],
    problems: list[int],
    G: int,
    step: int = 0,
    seed: int = 0,
    **limits,
) -> list[Response]:
    """G responses to each prompt. problems: each prompt's problem number. limits: `rollout`'s."""
    keys, earlier = [], Counter()
    for problem in (problem for problem in problems for _ in range(G)):
        keys.append((seed, step, problem, earlier[problem]))
        earlier[problem] += 1
    repeated = [prompt for prompt in prompts for _ in range(G)]
    return rollout(lm, tokenizer, repeated, keys, **limits)
