"""Responses with preset lengths from models with random weights.

A random model ends its responses at random, and sampling time depends on their lengths. Here the
uniform draws set the lengths: only a number above 1, which is never drawn, ends a response. The
model does the same work as in normal sampling.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessorList, Qwen3Config, Qwen3ForCausalLM

import rollout
from infra.sampler import left_padded

END_TOKEN = 1
END_HERE = 2.0  # replaces the uniform draw for the last token
UNLIMITED = 2**40  # tokens in the caches
PROMPT_WIDTH = 16  # tokens
GROUP = 4  # responses per prompt


def random_model(hidden: int, vocabulary: int = 151936, layers: int = 2) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3 with head size 64. END_TOKEN ends a response."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        head_dim=64,
        intermediate_size=3 * hidden,
        tie_word_embeddings=True,
        eos_token_id=END_TOKEN,
        pad_token_id=0,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


class Scripted(rollout.InverseCDF):
    """Samples as usual, but a response ends only where its uniform draw is above 1."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, END_TOKEN] = -torch.inf  # in place: a copy would add to the measured time
        chosen = super().__call__(input_ids, scores)  # [R, V], 0 at the token drawn, else -inf

        new = input_ids.shape[1] - self.prompt_width
        ends = self.uniforms[:, new, None] > 1  # [R, 1]
        end = torch.full_like(chosen[:1], -torch.inf)
        end[:, END_TOKEN] = 0.0
        return torch.where(ends, end, chosen)  # indexing with a mask would wait for the GPU


def script(sample: int, length: int, longest: int) -> np.ndarray:
    """The uniform draws for a response with `length` tokens: [longest]."""
    numbers = np.random.default_rng(sample).random(longest)
    numbers[length - 1] = END_HERE
    return numbers


class Given:
    """Returns the given numbers instead of random ones, then zeros."""

    def __init__(self, numbers: np.ndarray):
        self.rest = numbers

    def random(self, count: int) -> np.ndarray:
        now, self.rest = self.rest[:count], self.rest[count:]
        return np.append(now, np.zeros(count - len(now)))


def scripted_jobs(count: int) -> list[rollout.Job]:
    """Jobs for rollout.generate, GROUP per prompt."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 30, size=PROMPT_WIDTH).tolist() for _ in range(count // GROUP + 1)]
    names = [(0, 0, *divmod(i, GROUP)) for i in range(count)]
    return [rollout.Job(prompts[name[2]], name) for name in names]


@contextmanager
def scripted_lengths(lengths: list[int]) -> Iterator[None]:
    """Within this context, the response to scripted_jobs(...)[i] has lengths[i] tokens."""

    def numbers(seed: int, step: int, problem: int, sample: int) -> Given:
        i = problem * GROUP + sample
        return Given(script(i, lengths[i], max(lengths)))

    with (
        patch.object(rollout, "InverseCDF", Scripted),
        patch.object(rollout, "random_numbers", numbers),
    ):
        yield


def sampled(lm, lengths: list[int]) -> list[np.ndarray]:
    """Responses with these lengths from rollout.generate, all in flight at once."""
    with scripted_lengths(lengths):
        sampling = rollout.Sampling(max(lengths), in_flight=len(lengths), cache_tokens=UNLIMITED)
        samples = rollout.generate(lm, scripted_jobs(len(lengths)), [END_TOKEN], sampling)
    return [sample.tokens for sample in samples]


@torch.no_grad()
def plain_generate(lm, lengths: list[int]) -> list[list[int]]:
    """The same responses from one call to Hugging Face `generate`.

    All responses stay in the batch until the longest ends.
    """
    jobs = scripted_jobs(len(lengths))
    ids, mask = left_padded([torch.tensor(job.prompt) for job in jobs], lm.device)
    numbers = [script(i, length, max(lengths)) for i, length in enumerate(lengths)]
    uniforms = torch.from_numpy(np.stack(numbers))  # [B, longest]
    choose = Scripted(uniforms.to(lm.device), ids.shape[1], temperature=1.0, top_p=1.0)
    out = lm.generate(
        ids,
        attention_mask=mask,
        logits_processor=LogitsProcessorList([choose]),
        generation_config=GenerationConfig(
            do_sample=False, max_new_tokens=max(lengths), eos_token_id=END_TOKEN, pad_token_id=0
        ),
    )
    new = out[:, ids.shape[1] :].tolist()
    return [tokens[:length] for tokens, length in zip(new, lengths, strict=True)]
