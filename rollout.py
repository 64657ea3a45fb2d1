"""Rollouts: G responses per prompt by Hugging Face `generate`, each fixed by (seed, step, problem, sample) alone.

Every row and position has one uniform number; a LogitsProcessor turns it into a token by inverse CDF and `generate` then decodes
greedily. What is sampled depends neither on the number of ranks, nor on who shares the batch, nor on any global random state, and two
methods can be compared under common random numbers. Temperature and top-p (Sec. 5: 1.0 in training, 0.7 in evaluation) act here only.

Departures: none from the paper; the released code samples with a serving engine.
Shapes: B responses, T tokens of the longest sequence, V vocabulary, G group size.
"""
import os
from collections import deque

import numpy as np, torch, torch.distributed as dist
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.cache_utils import DynamicLayer

from data import Rollouts, pack

CHUNK = 64  # tokens between two looks at who has finished


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

    uniforms [B, max_new_tokens] float64; column t serves the t-th new token. All scores but the chosen token's become -inf.
    """

    def __init__(self, uniforms: torch.Tensor, prompt_width: int, temperature: float, top_p: float):
        self.uniforms, self.prompt_width, self.temperature, self.top_p = uniforms, prompt_width, temperature, top_p
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
    return sorted({tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None})


class Interrupted(Exception): """Sampling was told to stop; every rank abandons the batch."""


@torch.no_grad()
def rollout(lm, tokenizer, prompts: list[list[int]], problem_ids: list[int], group_size: int, max_new_tokens: int, temperature: float = 1.0,
            top_p: float = 1.0, seed: int = 0, step: int = 0, rows: int = 256, cache_tokens: int = 0, stop=lambda: False) -> Rollouts:
    """Sample `group_size` responses to each prompt; ranks, where there are several, share the prompts and all get all responses.

    prompts: token ids of P prompts; problem_ids: P non-negative integers that name the problems; at most `rows` responses are in
    flight with `cache_tokens` tokens in their caches (0: what fits in free memory). Returns Rollouts of B = P * group_size, groups
    contiguous. Raises FloatingPointError when logits are not finite, Interrupted once stop() is true on a rank.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    jobs = [(prompt, lambda p=problem, s=sample: uniforms(seed, step, p, s, max_new_tokens))
            for prompt, problem in zip(prompts, problem_ids, strict=True) for sample in range(group_size)]
    mine, ends = [job for i, job in enumerate(jobs) if i // group_size % world == rank], end_tokens(lm, tokenizer)
    try:
        new = generate(lm, mine, max_new_tokens, ends, temperature, top_p, rows, cache_tokens or free_cache_tokens(lm), stop)
        part = list(zip(new, tokenizer.batch_decode(new, skip_special_tokens=True)))
    except (FloatingPointError, Interrupted) as error:  # the others wait below: tell them
        part = error
    parts = [part] * world
    if world > 1: dist.all_gather_object(parts, part)
    for error in (part for part in parts if isinstance(part, Exception)): raise error
    dealt = [iter(part) for part in parts]
    responses, texts = zip(*(next(dealt[i // group_size % world]) for i in range(len(jobs))))
    return pack([prompt for prompt, _ in jobs], responses, list(texts), ends, lm.device)


def cache_bytes(config, itemsize: int) -> int:
    """Bytes of keys and values that one token takes in the cache: 147,456 for Qwen3-8B in bfloat16."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head * itemsize


def free_cache_tokens(lm) -> int:
    """Tokens whose keys and values take 60 % of the free memory."""
    if lm.device.type == "cuda": torch.cuda.empty_cache()
    free = (torch.cuda.mem_get_info(lm.device)[0] if lm.device.type == "cuda" else
            os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in os.sysconf_names else 4e9)
    return int(0.6 * free / cache_bytes(lm.config, lm.dtype.itemsize))


class GrowingLayer(DynamicLayer):
    """A cache layer that grows by CHUNK tokens: DynamicLayer concatenates, and so copies all keys and values for every token."""

    def update(self, key_states, value_states, *args, **kwargs):
        old, total = self.get_seq_length(), self.get_seq_length() + key_states.shape[2]
        if not old or self.keys.data_ptr() != self.room[0].data_ptr() or total > self.room[0].shape[2]:
            self.room = [x.new_empty(*x.shape[:2], total + CHUNK, x.shape[3]) for x in (key_states, value_states)]
            if old: self.room[0][:, :, :old], self.room[1][:, :, :old] = self.keys, self.values
        self.room[0][:, :, old:total], self.room[1][:, :, old:total] = key_states, value_states
        self.keys, self.values, self.is_initialized = self.room[0][:, :, :total], self.room[1][:, :, :total], True
        return self.keys, self.values


def left_padded(sequences: list[torch.Tensor], device) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) [R, L], L at least 2; the mask comes from lengths, never from ids."""
    ids = pad_sequence([*sequences, torch.zeros(2, dtype=torch.long)], batch_first=True, padding_side="left")[:-1].to(device)
    length = torch.tensor([len(s) for s in sequences], device=device)
    return ids, (torch.arange(ids.shape[1], device=device) >= ids.shape[1] - length[:, None]).long()


def prefill(lm, sequences: list[torch.Tensor]) -> DynamicCache:
    """The cache of all but the last token, in one pass over the distinct sequences: G responses to a prompt get copies of its cache."""
    keys = [tuple(s.tolist()) for s in sequences]
    place = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    ids, mask = left_padded([torch.tensor(key) for key in place], lm.device)
    cache = DynamicCache()
    cache.layer_class_to_replicate = GrowingLayer
    lm.base_model(input_ids=ids[:, :-1], attention_mask=mask[:, :-1], position_ids=(mask.cumsum(1) - 1).clamp_min(0)[:, :-1],
                  past_key_values=cache, use_cache=True)
    return keep(cache, [place[key] for key in keys], ids.shape[1] - 1)


def keep(cache: DynamicCache, rows: list[int], columns: int) -> DynamicCache:
    """Only these rows of the cache, and its last `columns` columns: the rest is padding in all of them."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[rows, :, -columns:], layer.values[rows, :, -columns:]
    return cache


def merged(cache: DynamicCache, other: DynamicCache) -> DynamicCache:
    """The rows of both, the shorter padded on the left."""
    both = lambda x, y: torch.cat([pad(z, (0, 0, max(x.shape[2], y.shape[2]) - z.shape[2], 0)) for z in (x, y)])
    for a, b in zip(cache.layers, other.layers):
        a.keys, a.values = both(a.keys, b.keys), both(a.values, b.values)
    return cache


def generate(lm, jobs: list[tuple], max_new_tokens: int, ends: list[int], temperature: float = 1.0, top_p: float = 1.0, rows: int = 256,
             cache_tokens: int = 2**40, stop=lambda: False) -> list[list[int]]:
    """New tokens, up to and with the end token, for each of `jobs`: (prompt, function that gives its uniform numbers).

    Hugging Face `generate` in chunks of CHUNK tokens. Between chunks finished rows leave batch and cache and waiting ones take their
    places, so one long response does not hold up hundreds; those that outgrow cache_tokens step back, the shortest first.
    """
    text, start = [torch.tensor(prompt) for prompt, _ in jobs], [len(prompt) for prompt, _ in jobs]
    waiting, active, finished, uniform, cache = deque(range(len(jobs))), [], set(), {}, None
    width = lambda some: max([2, *(len(text[i]) for i in some)])
    fits = lambda count, widest: count < 2 or count <= rows and count * (widest + CHUNK) <= cache_tokens
    own, lm.generation_config = lm.generation_config, GenerationConfig()  # a hub config would change the sampling law
    bar = tqdm(total=len(jobs), desc="sampling", delay=5, leave=False, disable=None)
    try:
        while len(finished) < len(jobs):
            staying, arriving = [i for i in active if i not in finished], []
            while not fits(len(staying), width(staying)):
                waiting.append(shortest := min(staying, key=lambda i: len(text[i]) - start[i]))
                staying.remove(shortest)
            widest = width(staying)
            while waiting and fits(len(staying) + len(arriving) + 1, widest := max(widest, len(text[waiting[0]]))):
                arriving.append(i := waiting.popleft())
                uniform[i] = np.append(jobs[i][1](), np.zeros(CHUNK))  # zeros: others may go on past this row's limit
            if staying and staying != active: cache = keep(cache, [active.index(i) for i in staying], width(staying) - 1)
            if arriving:
                cache = merged(cache, prefill(lm, [text[i] for i in arriving])) if staying else prefill(lm, [text[i] for i in arriving])
            active = staying + arriving
            ids, mask = left_padded([text[i] for i in active], lm.device)
            count = min(CHUNK, max(start[i] + max_new_tokens - len(text[i]) for i in active))
            u = [uniform[i][len(text[i]) - start[i]:][:count] for i in active]
            choose = InverseCDF(torch.from_numpy(np.stack(u)).to(lm.device), ids.shape[1], temperature, top_p)
            out = lm.generate(ids, attention_mask=mask, past_key_values=cache, logits_processor=LogitsProcessorList([choose]),
                              generation_config=GenerationConfig(do_sample=False, max_new_tokens=count, eos_token_id=ends, pad_token_id=ends[0]))
            if not choose.finite: raise FloatingPointError("the model's logits are not finite")
            ended = torch.isin(new := out[:, ids.shape[1]:].cpu(), torch.tensor(ends))
            size = torch.where(ended.any(1), ended.int().argmax(1) + 1, new.shape[1]).tolist()
            for i, tokens, n in zip(active, new, size):
                text[i] = torch.cat([text[i], tokens[:min(n, start[i] + max_new_tokens - len(text[i]))]])
                if text[i][-1] in ends or len(text[i]) == start[i] + max_new_tokens: finished.add(i)
            bar.update(len(finished) - bar.n)
            if stop(): raise Interrupted
    finally:
        lm.generation_config = own
        bar.close()
    return [t[n:].tolist() for t, n in zip(text, start)]
