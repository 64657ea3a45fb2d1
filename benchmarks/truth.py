"""The true credit of single tokens on the toy, by branching.

The state s_t before token t is the prompt and the tokens so far. Transitions are deterministic, so
Q(s_t, o_t) = V(s_{t+1}), and the token's credit is Q - V = V(s_{t+1}) - V(s_t). V(s_t) is the
probability of a right answer, estimated from SAMPLES continuations that the model samples from s_t.
Continuation m from every prefix of a response uses the same uniform draw at the same position, so
neighbouring prefixes differ mainly in the effect of their token, not by chance.

If p(o_t) is nearly 1, there is nothing to measure: |Q - V| <= 1 - p, because Q and V differ only
if another token is drawn. Tokens with 1 - p below SURE get Q - V = 0 and the V of the next token
above SURE.

Shapes: N tokens of a batch, T tokens of a response.
"""

from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import torch

import rollout
from batch import Rollout, TokenBatch
from benchmarks.batches import IN_FLIGHT, auc
from grading import grade
from rollout import Job, Sampling

SAMPLES = 64  # continuations per prefix
SURE = 1e-3


@dataclass
class Truth:
    """The true credit of a batch's tokens."""

    credit: torch.Tensor  # [N] Q - V
    error: torch.Tensor  # [N] its standard error

    @property
    def clear(self) -> torch.Tensor:
        """Which tokens have |Q - V| beyond two standard errors; none with p near 1: bool [N]."""
        return self.credit.abs() > 2 * self.error


def branched(lm, tokenizer, rollouts: list[Rollout], tokens: TokenBatch, limit: int) -> Truth:
    """The true credit of all tokens of `rollouts`, from continuations of at most `limit` tokens."""
    credit, error = [], []
    for i, each in enumerate(rollouts):
        unsure = -torch.expm1(tokens.logprob[tokens.places(i)])  # [T] 1 - p
        positions = [t for t, x in enumerate(unsure.tolist()) if x >= SURE]
        rewards = rewards_of_branches(lm, tokenizer, each, positions, i, limit)
        _, *found = credit_of(rewards, positions, len(each.tokens), each.reward)
        credit.append(found[0])
        error.append(found[1])
    return Truth(*(torch.from_numpy(np.concatenate(parts)) for parts in (credit, error)))


def rewards_of_branches(
    lm,
    tokenizer,
    response: Rollout,
    positions: list[int],
    seed: int,
    limit: int,
    samples: int = SAMPLES,
) -> np.ndarray:
    """The rewards for continuations from the prefix before each position: [positions, samples].

    In each sample, all positions share the uniform draw at each place. If a continuation
    reproduces the response up to a later position, both positions get the same reward.
    """
    if not positions:
        return np.zeros((0, samples))
    written = response.tokens.tolist()
    jobs = []
    for t in positions:
        prefix = response.prompt + written[:t]
        jobs += [Job(prefix, (seed, t, 0, m)) for m in range(samples)]

    sampling = Sampling(limit, in_flight=IN_FLIGHT)
    with patch.object(rollout, "random_numbers", numbers_after):
        continued = rollout.generate(lm, jobs, rollout.end_tokens(lm, tokenizer), sampling)
    whole = []
    for i, new in enumerate(continued):
        whole.append(written[: positions[i // samples]] + new.tokens.tolist())
    texts = tokenizer.batch_decode(whole, skip_special_tokens=True)
    grades = [grade(text, response.problem) for text in texts]
    return np.array(grades).reshape(len(positions), samples)


def numbers_after(seed: int, position: int, problem: int, sample: int) -> np.random.Generator:
    """The uniform draws of a continuation: those of a whole response, from `position` on."""
    numbers = np.random.default_rng([seed, 0, problem, sample])
    numbers.random(position)
    return numbers


def credit_of(
    rewards: np.ndarray, positions: list[int], length: int, reward: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """V before each token, Q - V of each token, and its standard error: [T] each.

    rewards: [positions, samples]. reward: the response's reward, which is V at its end.
    """
    samples = rewards.shape[1]
    ended = np.full((1, samples), reward)
    after = np.concatenate([rewards[1:], ended])  # [positions, samples]
    gained = after - rewards

    credit = np.zeros(length)
    error = np.zeros(length)
    credit[positions] = gained.mean(axis=1)
    error[positions] = gained.std(axis=1, ddof=1) / samples**0.5

    # A token that is nearly certain gets the value of the next token that is not.
    value = np.full(length, reward)
    start = 0
    for position, of_samples in zip(positions, rewards, strict=True):
        value[start : position + 1] = of_samples.mean()
        start = position + 1
    return value, credit, error


def agreement(truth: Truth, rollouts: list[Rollout], marks: torch.Tensor) -> list[dict]:
    """How well marks [N] and |Q - V| agree, on the tokens of right and of wrong responses.

    clear: the tokens with a clear Q - V; above: those of them with Q - V above 0. In a wrong
    response these are right steps.
    """
    lines = []
    right = torch.cat([torch.full((len(x.tokens),), x.reward > 0) for x in rollouts])  # [N]
    for name, side in (("right", right), ("wrong", ~right)):
        size = truth.credit[side].abs()
        marked = marks[side]
        clear = truth.clear[side]
        line = {"responses": name, "tokens": int(side.sum()), "auc": auc(size, marked)}
        line |= {"share": float(size[marked].sum() / size.sum()), "clear": int(clear.sum())}
        lines.append(line | {"above": int((clear & (truth.credit[side] > 0)).sum())})
    return lines
