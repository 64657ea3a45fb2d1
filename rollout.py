"""Rollouts: G responses per prompt by Hugging Face `generate`, each fixed by (seed, step, problem, sample) alone.

Every row and position has one uniform number; a LogitsProcessor turns it into a token by inverse CDF and `generate` then
decodes greedily. What is sampled so depends neither on who shares the batch nor on any global random state, two methods can be
compared under common random numbers, and temperature and top-p are applied here and nowhere else (Sec. 5: 1.0 and 1.0 in
training, top-p 0.7 in evaluation).

Departures: none from the paper; the released code samples with a serving engine.
Shapes: B responses, T tokens of the longest sequence, V vocabulary, G group size.
"""
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

@dataclass
class Rollouts:
    """B responses, the G of a prompt next to each other; sequences start at column 0 and are padded on the right."""
    ids: torch.Tensor              # [B, T] prompt, response (its end token included), padding
    prompt_length: torch.Tensor    # [B] tokens
    response_length: torch.Tensor  # [B] tokens, the end token included
    truncated: torch.Tensor        # [B] bool: stopped by max_new_tokens, not by an end token
    texts: list[str]               # B decoded responses without special tokens

    def response_ids(self, i: int) -> torch.Tensor:
        """The tokens of response i, [response_length[i]]."""
        start = int(self.prompt_length[i])
        return self.ids[i, start:start + int(self.response_length[i])]

    def pick(self, index: list[int]) -> "Rollouts":
        """The responses `index`, in that order."""
        return Rollouts(self.ids[index], self.prompt_length[index], self.response_length[index], self.truncated[index],
                        [self.texts[i] for i in index])


def token_distribution(logits: torch.Tensor, temperature: float = 1.0, top_p: float = 1.0) -> torch.Tensor:
    """Probabilities [B, V] (float64) after temperature and top-p: the smallest set of likeliest tokens of mass >= top_p."""
    p = (logits.float() / temperature).softmax(dim=-1).double()
    if top_p < 1.0:
        ordered, index = p.sort(dim=-1, descending=True, stable=True)
        ordered[ordered.cumsum(dim=-1) - ordered >= top_p] = 0.0  # the mass before a token already reaches top_p
        p = torch.zeros_like(p).scatter(-1, index, ordered)
    return p / p.sum(dim=-1, keepdim=True)


class InverseCDF(LogitsProcessor):
    """Chooses token min{y : F(y) > u} for each row, F the cumulative distribution over the vocabulary, u in [0, 1).

    uniforms [B, max_new_tokens] float64; column t serves the t-th new token. All scores become -inf but the chosen
    token's, so greedy decoding picks it.
    """

    def __init__(self, uniforms: torch.Tensor, prompt_width: int, temperature: float, top_p: float):
        self.uniforms, self.prompt_width = uniforms, prompt_width
        self.temperature, self.top_p = temperature, top_p
        self.finite = torch.ones((), dtype=torch.bool, device=uniforms.device)  # read once at the end: no sync per token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        cdf = token_distribution(scores, self.temperature, self.top_p).cumsum(dim=-1)  # [B, V]
        u = self.uniforms[:, input_ids.shape[1] - self.prompt_width, None] * cdf[:, -1:]  # rounding: F(V) is not exactly 1
        self.finite &= cdf[:, -1].isfinite().all()
        token = torch.searchsorted(cdf, u, right=True).clamp_max(cdf.shape[1] - 1)  # right: never a token of probability 0
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


def uniforms(seed: int, step: int, problem: int, sample: int, count: int) -> np.ndarray:
    """[count] float64 in [0, 1), fixed by (seed, step, problem, sample)."""
    return np.random.default_rng([seed, step, problem, sample]).random(count)


def end_tokens(lm, tokenizer) -> list[int]:
    """Ids that end a response: the tokenizer's end token and those of the model's generation config."""
    configured = lm.generation_config.eos_token_id
    configured = configured if isinstance(configured, list) else [configured]
    return sorted({i for i in [tokenizer.eos_token_id, *configured] if i is not None})


@torch.no_grad()
def rollout(lm, tokenizer, prompts: list[list[int]], problem_ids: list[int], group_size: int, max_new_tokens: int,
            temperature: float = 1.0, top_p: float = 1.0, seed: int = 0, step: int = 0, rows: int = 256) -> Rollouts:
    """Sample `group_size` responses to each prompt.

    prompts: token ids of P prompts; problem_ids: P non-negative integers that name the problems; rows: responses in
    flight at a time. Returns Rollouts of B = P * group_size on the model's device, groups contiguous.
    Raises FloatingPointError when the model's logits are not finite.
    """
    jobs = [(prompt, problem, sample) for prompt, problem in zip(prompts, problem_ids, strict=True)
            for sample in range(group_size)]
    ends, responses = end_tokens(lm, tokenizer), []
    chunks = range(0, len(jobs), rows)
    for start in tqdm(chunks, desc="sampling", delay=5, leave=False, disable=None if len(chunks) > 1 else True):
        batch = jobs[start:start + rows]
        u = np.stack([uniforms(seed, step, problem, sample, max_new_tokens) for _, problem, sample in batch])
        responses += generate(lm, [prompt for prompt, _, _ in batch], u, ends, temperature, top_p)
    return pack([job[0] for job in jobs], responses, ends, tokenizer, lm.device)


def generate(lm, prompts: list[list[int]], u: np.ndarray, ends: list[int], temperature: float, top_p: float) -> list[list[int]]:
    """One call of Hugging Face `generate` for len(prompts) rows; returns their new tokens up to and with the end token."""
    width = max(map(len, prompts))
    ids = torch.tensor([[ends[0]] * (width - len(p)) + p for p in prompts], device=lm.device)  # generate wants left padding
    mask = torch.arange(width) >= width - torch.tensor([[len(p)] for p in prompts])  # from lengths, never from ids
    choose = InverseCDF(torch.from_numpy(u).to(lm.device), width, temperature, top_p)
    own, lm.generation_config = lm.generation_config, GenerationConfig()  # a hub config would change the sampling law
    try:
        out = lm.generate(ids, attention_mask=mask.to(lm.device).long(), logits_processor=LogitsProcessorList([choose]),
                          generation_config=GenerationConfig(do_sample=False, max_new_tokens=u.shape[1], eos_token_id=ends,
                                                             pad_token_id=ends[0], use_cache=True))
    finally:
        lm.generation_config = own
    if not choose.finite:
        raise FloatingPointError("the model's logits are not finite")
    new = out[:, width:].tolist()
    stop = [next((t + 1 for t, token in enumerate(row) if token in ends), len(row)) for row in new]
    return [row[:n] for row, n in zip(new, stop)]


def pack(prompts: list[list[int]], responses: list[list[int]], ends: list[int], tokenizer, device) -> Rollouts:
    """Put prompts and responses side by side, from column 0 on; what is on the right of a response is never read."""
    prompt_length, response_length = (torch.tensor([len(x) for x in xs], device=device) for xs in (prompts, responses))
    ids = torch.full((len(prompts), int((prompt_length + response_length).max())), ends[0], device=device)
    for i, (prompt, response) in enumerate(zip(prompts, responses)):
        ids[i, :len(prompt) + len(response)] = torch.tensor(prompt + response, device=device)
    truncated = torch.tensor([response[-1] not in ends for response in responses], device=device)
    return Rollouts(ids, prompt_length, response_length, truncated, tokenizer.batch_decode(responses, skip_special_tokens=True))


def join(parts: list[Rollouts]) -> Rollouts:
    """Several Rollouts as one, in order."""
    width = max(part.ids.shape[1] for part in parts)
    ids = torch.cat([torch.nn.functional.pad(part.ids, (0, width - part.ids.shape[1])) for part in parts])
    lengths = [torch.cat([getattr(part, name) for part in parts]) for name in ("prompt_length", "response_length", "truncated")]
    return Rollouts(ids, *lengths, [text for part in parts for text in part.texts])
