"""Loads a model by name, and checks that training and sampling agree with `from_pretrained`.

`load_model` loads the full model, for evaluation. `load_policy` shards it over all ranks, for
training: weights, gradients and Adam moments in float32, computation in the dtype of --dtype.

An unknown scale in the head, dropout, or a cache that a layer cannot use would silently change the
model in training or sampling. So three short sequences run through `from_pretrained`'s model,
`Policy`, and `generate` with the sampler's cache. If their log-probabilities differ by more than
rounding, the model is refused. The check cannot detect a difference beyond the longest of LENGTHS
(a sliding window, a rotary scheme for long sequences) or below the tolerance.
"""

import copy
from functools import partial
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.tensor import distribute_tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from infra.errors import UserError, one_line
from infra.model_files import from_files, locate
from infra.packed import packed_weights, use_fast_products
from infra.ranks import on_first_rank, rank_and_world, shard, this_device
from infra.sampler import Batch
from policy import Policy, decoder_of, give_float32_head

LENGTHS = (48, 29, 9)  # of the checked sequences, padded; the longest prompt, of 40, is shared
LAST = 8  # tokens of each that are compared: the last ones, which the sampler is forced to choose

# The largest mean difference of log-probabilities that counts as rounding, nats. Random models of 4
# to 64 layers gave at most 1.1e-5 in float32 and 0.14 in bfloat16 (0.05 with 28 layers), on a CPU.
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.3}


def load_model(name: str | Path, dtype: torch.dtype = torch.float32) -> tuple:
    """(full model in `dtype` with float32 logits, tokenizer). All ranks call this.

    Raises UserError.
    """
    folder, _, tokenizer = locate(name)
    published, lm = from_files(name, folder, dtype)
    expected = reference_logprobs(name, published)
    lm = lm.to(this_device())
    give_float32_head(lm)  # like train.py's sampler
    refuse_difference(name, "sampling", sampler_logprobs(name, lm), expected, dtype)
    return lm, tokenizer


def load_policy(
    name: str | Path,
    temperature: float = 1.0,
    recompute: bool = True,
    dtype: torch.dtype = torch.float32,
) -> tuple:
    """(sharded Policy, tokenizer). All ranks call this; only the first reads the weights.

    name: folder or hub id. temperature: for sampling and log-probabilities. recompute: activation
    checkpointing per layer. dtype: that of the computation. Raises UserError, for example if the
    policy differs from from_pretrained's model.
    """
    folder, _, tokenizer = locate(name)
    whole = []  # on the first rank: the full language model, without parts for images

    def read() -> tuple:
        published, language_model = from_files(name, folder, torch.float32)  # rounds no weight
        whole.append(language_model)
        return (
            reference_logprobs(name, published),
            dict(language_model.named_buffers()),
            language_model.config,
            language_model.generation_config,
        )

    expected, buffers, config, generation_config = on_first_rank(read)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        ).eval()
    unsharded_lm = copy.deepcopy(lm)
    unsharded_lm.generation_config = generation_config
    use_fast_products(lm)
    layers = decoder_layers(lm)
    if recompute:
        for layer in layers:  # stores only its input, and runs again in the backward pass
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    policy = Policy(lm, unsharded_lm=unsharded_lm)
    shard(policy, layers, dtype)
    fill(lm, whole.pop() if whole else None, buffers)  # frees 33 GB for 8B

    # At temperature 1, like the reference. This first forward pass also lets FSDP find its root,
    # so it precedes `policy.sampler`.
    refuse_difference(name, "training", policy_logprobs(name, policy), expected, dtype)
    with policy.sampler() as sampler:
        refuse_difference(name, "sampling", sampler_logprobs(name, sampler), expected, dtype)
    policy.temperature = temperature
    return policy, tokenizer


# ---- sharding ------------------------------------------------------------------------------------


def decoder_layers(lm: torch.nn.Module) -> torch.nn.ModuleList:
    """The body's layers: the module list with the most parameters."""
    lists = [part for part in decoder_of(lm).modules() if isinstance(part, torch.nn.ModuleList)]
    return max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()))


@torch.no_grad()
def fill(lm: torch.nn.Module, whole: torch.nn.Module | None, buffers: dict) -> None:
    """Give every rank its slices of the first rank's weights, tensor by tensor, and all buffers.

    lm: sharded, on the meta device. whole: the full model on the first rank, else None.
    """
    lm.to_empty(device=this_device())
    for key, parameter in lm.named_parameters():
        full = torch.empty(parameter.shape, device=this_device())
        if whole is not None:
            full.copy_(whole.get_parameter(key))
        parameter.copy_(distribute_tensor(full, parameter.device_mesh, parameter.placements))
    for key, buffer in lm.named_buffers():  # some, such as rotary frequencies, are in no file
        buffer.copy_(buffers[key])


# ---- the check -----------------------------------------------------------------------------------


def random_sequences(vocabulary: int) -> list[torch.Tensor]:
    """Fixed random sequences of LENGTHS tokens."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=generator) for length in LENGTHS]


def logprobs_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log p of tokens [n] under the logits [n, V] that predict them: [n] float32, on the host."""
    return logits.float().cpu().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)


@torch.no_grad()
def reference_logprobs(name: str | Path, lm: torch.nn.Module) -> torch.Tensor:
    """log p from the model's own forward pass, without padding or cache: [3, LAST].

    lm: from_pretrained's model, with any parts for images, on the CPU, so even one that fits on
    GPUs only in shards is checked. Raises UserError if it does not run.
    """
    logprobs = []
    with one_line(name, "its architecture does not run with its config.json"):
        for sequence in random_sequences(lm.config.get_text_config().vocab_size):
            logits = lm(sequence[None, :-1], use_cache=False).logits[0, -LAST:]
            logprobs.append(logprobs_of(logits, sequence[-LAST:]))
    return torch.stack(logprobs)


@torch.no_grad()
def policy_logprobs(name: str | Path, policy: Policy) -> torch.Tensor:
    """log p from the policy, in padded batches: [3, 3, LAST]. All ranks call this.

    The second batch has each sequence twice, so that their prompts run once (infra/prompts.py).
    """
    ids = pad_sequence(random_sequences(policy.lm.config.vocab_size), batch_first=True)
    column, length = torch.arange(ids.shape[1]), torch.tensor(LENGTHS)[:, None]
    mask = (length - LAST <= column) & (column < length)
    ids, mask = ids.to(this_device()), mask.to(this_device())
    with one_line(name, "its architecture cannot be trained here"):
        batches = [policy(ids.repeat(n, 1), mask.repeat(n, 1)).logprob for n in (1, 2)]
        return torch.cat(batches).view(-1, len(LENGTHS), LAST).cpu()


@torch.no_grad()
def sampler_logprobs(name: str | Path, lm) -> torch.Tensor:
    """log p from the sampler, with a cache and padding: [1, 3, LAST]. All ranks call this.

    On a GPU [2, 3, LAST]: by `generate`, and recorded (infra/captured.py).
    """
    sequences = random_sequences(lm.config.vocab_size)
    tokens = torch.stack([sequence[-LAST:] for sequence in sequences])  # [3, LAST]
    logprobs = []
    for record in (False, True) if lm.device.type == "cuda" else (False,):
        forced = Forced(tokens.to(lm.device))
        with packed_weights(lm), one_line(name, "it cannot be sampled with a cache between chunks"):
            batch = Batch(lm, [sequence[:-LAST] for sequence in sequences])
            batch.next_tokens(forced, LAST, record=record)
        logprobs.append(forced.logprob.cpu())
    return torch.stack(logprobs)


class Forced:
    """Chooses given tokens [R, count], and keeps their log p: a `choose` of sampler.Batch."""

    def __init__(self, tokens: torch.Tensor):
        self.tokens = tokens
        self.column = torch.zeros(1, dtype=torch.long, device=tokens.device)
        self.logprob = torch.zeros(tokens.shape, device=tokens.device)

    def __call__(self, so_far: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        token = self.tokens.index_select(1, self.column)  # [R, 1]
        logprob = logits.float().log_softmax(-1).gather(1, token)
        self.logprob.index_copy_(1, self.column, logprob)
        self.column += 1
        return torch.full_like(logits, -torch.inf).scatter_(1, token, 0.0)


def refuse_difference(
    name: str | Path,
    where: str,
    logprobs: torch.Tensor,
    expected: torch.Tensor,
    dtype: torch.dtype,
) -> None:
    """Raise UserError, on all ranks, if `logprobs` differ from `expected` by more than rounding."""
    apart = (logprobs - expected).abs().mean().nan_to_num(nan=torch.inf)
    if rank_and_world()[1] > 1:
        dist.all_reduce(apart, dist.ReduceOp.MAX)
    bound = BOUNDS[dtype]
    if apart > bound:
        raise UserError(
            f"--model {name}: log-probabilities in {where} differ by {apart:.2g} nats from "
            f"from_pretrained's (rounding: up to {bound:g}): its architecture has an unknown part "
            "or its weights are damaged, so it cannot be used here"
        )
