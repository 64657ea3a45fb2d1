"""Responses of scripted lengths from a random model, on every CPU.

The model gives each of the 30 tokens a probability of about 1/30. So a uniform draw below 0.5 never
selects the last token, and a draw just below 1 does.
"""

import numpy as np
import torch

import toy
from infra.sampler import Running
from rollout import random_numbers

LAST = len(toy.VOCABULARY) - 1  # ends a response
LONGEST = 200  # tokens
PROMPTS = [[7], [8, 9, 10, 11, 12, 13], [20, 21, 5], [6, 7, 8, 9], [14, 15]]


class Given:
    """Returns the given numbers instead of random ones, then zeros."""

    def __init__(self, numbers: np.ndarray):
        self.rest = numbers

    def random(self, count: int) -> np.ndarray:
        now, self.rest = self.rest[:count], self.rest[count:]
        return np.append(now, np.zeros(count - len(now)))


def random_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return toy.build_model().eval()


def scripted_responses(lengths: list[int]) -> list[Running]:
    """A response for each length of at most LONGEST tokens, which ends with LAST there."""
    responses = []
    for i, length in enumerate(lengths):
        u = random_numbers(0, 0, i, 0).random(LONGEST) * 0.5
        u[length - 1] = 1 - 2**-53
        responses.append(Running(PROMPTS[i % len(PROMPTS)], Given(u)))
    return responses
