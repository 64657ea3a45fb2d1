"""Loads a model by name, and checks that training and sampling agree with `from_pretrained`.

`load_model` loads the full model, for evaluation. `load_policy` shards it over all ranks, for
training: float32 weights, gradients and Adam moments, bfloat16 computation on GPUs, float32 on the
CPU. Both refuse a model if `from_pretrained` warns.

An unknown scale in the head, a buffer missing from the files, dropout, or a cache that a layer
cannot use would silently change the model in training or sampling. So about 50 tokens run through
`from_pretrained`'s model, `Policy`, and `generate` with the sampler's cache. If their
log-probabilities differ by more than rounding, the model is refused. The check cannot detect a
difference that starts beyond the longest of LENGTHS (a sliding window, a rotary scheme for long
sequences) or stays below the tolerance, which is wide in bfloat16.

Shapes: n tokens in the checked sequences, excluding each first token; V vocabulary size.
"""

import copy
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from infra.cache import hf_generate, left_padded, prefill
from infra.errors import UserError, one_line
from infra.head import give_float32_head
from infra.model_files import from_files, locate, refuse_model, refuse_too_large
from infra.packed_attention import can_pack
from infra.policy import Policy, decoder_layers, recompute_in_backward
from infra.ranks import (
    computation_dtype,
    device_mesh,
    on_first_rank,
    prefer_expandable_segments,
    rank_and_world,
    shard,
    this_device,
)

LENGTHS = (24, 17, 9)  # of three sequences; shorter sequences are padded
FORCED = 6  # last tokens of each sequence, which the sampler is forced to choose

# The largest mean difference of log-probabilities that counts as rounding, nats.
# Measured: 1e-6 in float32; 0.015 in bfloat16 on a CPU, with random models of 24 layers.
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.1}


def load_model(name: str | Path, dtype: torch.dtype = torch.float32) -> tuple:
    """(full model, tokenizer), on the GPU if there is one. The logits are float32.

    Raises UserError.
    """
    before_any_model()
    folder, _, tokenizer = locate(name)
    lm = from_files(name, folder, dtype).to(this_device())
    refuse_model(name, lm)
    expected = reference_logprobs(name, lm, dtype)
    give_float32_head(lm)  # like train.py's sampler
    check_sampler(name, lm, expected)
    return lm, tokenizer


def load_policy(
    name: str | Path,
    temperature: float = 1.0,
    recompute: bool = True,
    packing: bool = True,
) -> tuple:
    """(sharded Policy, tokenizer). All ranks call this.

    The first rank reads the model once on its host and broadcasts it tensor by tensor. Each rank
    keeps its slices.

    name: folder or hub id.
    temperature: for sampling and log-probabilities.
    recompute: activation checkpointing per layer.
    packing: on GPUs, pack micro-batches if packing leaves the model's results unchanged.
    Raises UserError, for example if the policy differs from from_pretrained's model.
    """
    before_any_model()
    folder, config, tokenizer = locate(name)
    with one_line(name, f"cannot read config.json of {folder}"), torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    lm.eval()  # with dropout the ratio would not be 1 at θ_old
    refuse_model(name, lm)
    refuse_too_large(name, lm)

    whole = []  # on the first rank: from_pretrained's model

    def read() -> tuple:
        whole.append(from_files(name, folder, torch.float32))  # float32, so no weight is rounded
        expected = reference_logprobs(name, whole[0], computation_dtype())
        return expected, dict(whole[0].named_buffers()), whole[0].generation_config

    # Before the shards are on the GPU.
    expected, buffers, lm.generation_config = on_first_rank(read)

    policy = Policy(lm)
    policy.twin = [copy.deepcopy(lm)]
    give_float32_head(policy.twin[0])
    layers = decoder_layers(lm)
    if recompute:
        recompute_in_backward(layers)

    shard(policy, layers, device_mesh())
    policy.to_empty(device=this_device())
    lm.tie_weights()
    broadcast_weights(policy, whole)
    whole.clear()
    for key, buffer in lm.named_buffers():  # some buffers are missing from the files
        buffer.copy_(buffers[key])

    # The first forward pass, which must precede `plain`, also lets FSDP find its root.
    where = f"{type(lm).__name__} as trained here"
    refuse_difference(name, where, policy_logprobs(policy), expected, computation_dtype())
    with policy.plain() as sampler:
        check_sampler(name, sampler, expected)
    if packing and this_device().type == "cuda":
        pack_where_equal(policy)
    policy.reshard()  # else an optimiser would hold the gathered parameters and train nothing
    policy.temperature = temperature
    return policy, tokenizer


def before_any_model() -> None:
    """Turn off cuDNN's attention, torch's first choice on H100 and later GPUs.

    cuDNN builds a new plan for every key length, i.e. for every token of a response. On B200 its
    results are wrong with few key heads.
    """
    prefer_expandable_segments()
    torch.backends.cuda.enable_cudnn_sdp(False)


def broadcast_weights(policy: Policy, whole: list[torch.nn.Module]) -> None:
    """Copy the first rank's model to all shards, in float32; `whole` is empty on other ranks."""
    weights = {}
    for lm in whole:
        weights = {f"lm.{key}": weight for key, weight in lm.named_parameters()}
    how = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(policy, weights, options=how)


# ---- the check -----------------------------------------------------------------------------------


def random_sequences(vocabulary: int) -> list[torch.Tensor]:
    """Fixed random sequences of LENGTHS tokens."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=generator) for length in LENGTHS]


@torch.no_grad()
def reference_logprobs(name: str | Path, lm: torch.nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """log p from the model's forward pass in `dtype`, without padding or cache: [n], on the host.

    lm: from_pretrained's model, run on its device. In training this is the CPU, so even a
    model that fits on GPUs only in shards is checked. Raises UserError if the model does not run,
    or a log p is NaN or infinite.
    """
    tensors = {key: x.to(dtype) for key, x in lm.named_parameters()}
    tensors |= dict(lm.named_buffers())

    logprobs = []
    with one_line(name, "its architecture does not run with its config.json"):
        for sequence in random_sequences(lm.config.vocab_size):
            ids = sequence[None, :-1].to(lm.device)
            out = functional_call(lm, tensors, (ids,), {"use_cache": False})
            logprobs.append(logprobs_of(out.logits[0], sequence[1:]))
    expected = torch.cat(logprobs)
    if not expected.isfinite().all():
        damaged = [key for key, p in lm.named_parameters() if not p.isfinite().all()]
        where = f"{damaged[0]} holds" if damaged else "its log-probabilities are"
        raise UserError(f"--model {name}: {where} NaN or infinite: its weights are damaged")
    return expected


def logprobs_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log p of tokens [n] under the logits [n, V] that predict them: [n] float32, on the host."""
    return logits.float().cpu().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)


@torch.no_grad()
def check_sampler(name: str | Path, lm, expected: torch.Tensor) -> None:
    """Compare log p of each sequence's last FORCED tokens, with cache and padding as in sampling.

    expected: `reference_logprobs` of the same model. All ranks call this.
    """
    sequences = random_sequences(lm.config.vocab_size)
    beginnings = [sequence[:-FORCED] for sequence in sequences]
    tokens = torch.stack([sequence[-FORCED:] for sequence in sequences])  # [sequences, FORCED]
    ids, mask = left_padded(beginnings, lm.device)
    logprobs = []  # [sequences] for each of the FORCED tokens

    def forced(so_far: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        token = tokens[:, so_far.shape[1] - ids.shape[1]]
        logprobs.append(logprobs_of(logits, token))
        return torch.full_like(logits, -torch.inf).scatter_(1, token[:, None].to(lm.device), 0.0)

    hf_generate(lm, ids, mask, prefill(lm, beginnings), forced, FORCED)
    of_each = expected.split([length - 1 for length in LENGTHS])
    expected = torch.stack([logprob[-FORCED:] for logprob in of_each])
    where = f"{type(lm).__name__} in sampling, with a cache and padding,"
    refuse_difference(name, where, torch.stack(logprobs, dim=1), expected, lm.dtype)


def refuse_difference(
    name: str | Path,
    where: str,
    logprobs: torch.Tensor,
    expected: torch.Tensor,
    dtype: torch.dtype,
) -> None:
    """Raise UserError, on all ranks, if `logprobs` differ from `expected` by more than rounding."""
    apart = difference(logprobs, expected)
    bound = BOUNDS[dtype]
    if not apart <= bound:
        raise UserError(
            f"--model {name}: log-probabilities of {where} differ by {apart:.2g} nats from "
            f"from_pretrained's (rounding: up to {bound:g}): its architecture has an unknown part, "
            "so it cannot be used here"
        )


def pack_where_equal(policy: Policy) -> None:
    """Let the policy pack its micro-batches, if log p stays the same. All ranks call this.

    StableLM, for example, attends over the whole packed row, so it stays padded.
    """
    if not can_pack(policy.lm):
        return
    padded = policy_logprobs(policy)
    policy.pack(True)
    if not difference(policy_logprobs(policy), padded) <= BOUNDS[computation_dtype()]:
        policy.pack(False)


@torch.no_grad()
def policy_logprobs(policy: Policy) -> torch.Tensor:
    """log p from the policy, in one padded or packed batch: [n], on the host."""
    sequences = random_sequences(policy.lm.config.vocab_size)
    ids = pad_sequence(sequences, batch_first=True).to(this_device())
    length = torch.tensor(LENGTHS, device=this_device())
    return policy(ids, torch.ones_like(length), length - 1).logprob.cpu()


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The mean absolute difference of log p, the largest over ranks; inf if it is NaN."""
    mean = (a - b).abs().mean().nan_to_num(nan=torch.inf)
    if rank_and_world()[1] > 1:
        mean = mean.to(this_device())
        dist.all_reduce(mean, dist.ReduceOp.MAX)
    return float(mean)
