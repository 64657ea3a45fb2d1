"""Checks at every load that training and sampling use the model that `from_pretrained` loads.

A head with a scale, a buffer that is in no file, dropout, or a cache that a layer cannot use would
train or sample another model without an error. So a few tokens run through the model of
`from_pretrained`, through `Policy`, and through `generate` with the sampler's cache. If their
log-probabilities differ by more than rounding, the model is refused.

The check runs some 50 tokens: one forward pass of `Policy`, and FORCED + 1 of the sampler, on every
rank. The reference pass for training runs on the first rank's host, in seconds to a minute, with a
copy of the weights in the dtype of the computation. The check cannot detect differences beyond the
longest of LENGTHS (a sliding window, a rotary scheme that starts later) or below the bound, which
is wide in bfloat16.

The temperature is 1. Shapes: n tokens of all sequences but the first of each, V vocabulary.
"""

from pathlib import Path

import torch
from torch import distributed as dist
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence

from infra.cache import generated, left_padded, prefill
from infra.errors import UserError, one_line
from infra.packed_attention import can_pack
from infra.policy import Policy
from infra.ranks import rank_and_world, this_device

LENGTHS = (24, 17, 9)  # of three sequences; the shorter ones are padded
FORCED = 6  # last tokens of each, which the sampler is forced to choose

# The largest mean difference of log-probabilities that counts as rounding, nats.
# Seen in float32: 1e-6. In bfloat16 on a CPU, in random models of 24 layers: 0.015.
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.1}


def computation_dtype() -> torch.dtype:
    """The dtype of a policy's computation: see ranks.shard."""
    return torch.bfloat16 if this_device().type == "cuda" else torch.float32


def random_sequences(vocabulary: int) -> list[torch.Tensor]:
    """Fixed random sequences of the LENGTHS."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=generator) for length in LENGTHS]


# ---- the reference -------------------------------------------------------------------------------


@torch.no_grad()
def reference_logprobs(name: str | Path, lm: torch.nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """log p by the model's forward pass in `dtype`, without padding and cache: [n], on the host.

    lm: the model of from_pretrained, run on its device. In training this is the CPU, so a model
    that fits on GPUs only in shards is also checked. Raises UserError if the model does not run, or
    a log p is NaN or infinite.
    """
    tensors = {key: x.to(dtype) for key, x in lm.named_parameters()}
    tensors |= dict(lm.named_buffers())

    logprobs = []
    with one_line(name, "its architecture does not run by its config.json"):
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
    """log p of tokens [n] by the logits [n, V] that predict them: [n] float32, on the host."""
    return logits.float().cpu().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)


# ---- the check -----------------------------------------------------------------------------------


@torch.no_grad()
def check_policy(name: str | Path, policy: Policy, expected: torch.Tensor) -> None:
    """Compare the policy, at temperature 1, and its sampler with `reference_logprobs`.

    All ranks call this, and all raise UserError if one differs.
    """
    where = f"{type(policy.lm).__name__} as trained here"
    refuse_difference(name, where, policy_logprobs(policy), expected, computation_dtype())
    with policy.plain() as lm:
        check_sampler(name, lm, expected)


@torch.no_grad()
def check_sampler(name: str | Path, lm, expected: torch.Tensor) -> None:
    """Compare the sampler with `reference_logprobs` of the same model. All ranks call this."""
    of_each = expected.split([length - 1 for length in LENGTHS])
    expected = torch.cat([logprobs[-FORCED:] for logprobs in of_each])
    where = f"{type(lm).__name__} in sampling, with a cache and padding,"
    refuse_difference(name, where, sampler_logprobs(lm), expected, lm.dtype)


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
            f"--model {name}: log-probabilities of {where} are {apart:.2g} nats from those of "
            f"from_pretrained (rounding is up to {bound:g}): its architecture has an unknown part, "
            "so it cannot be used here"
        )


@torch.no_grad()
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


def policy_logprobs(policy: Policy) -> torch.Tensor:
    """log p by the policy, on one padded or packed batch: [n], on the host."""
    sequences = random_sequences(policy.lm.config.vocab_size)
    ids = pad_sequence(sequences, batch_first=True).to(this_device())
    length = torch.tensor(LENGTHS, device=this_device())
    return policy(ids, torch.ones_like(length), length - 1).logprob.cpu()


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The mean difference of log p, maximum over ranks; inf if one is NaN."""
    mean = (a - b).abs().mean().nan_to_num(nan=torch.inf)
    if rank_and_world()[1] > 1:
        mean = mean.to(this_device())
        dist.all_reduce(mean, dist.ReduceOp.MAX)
    return float(mean)


# ---- the sampler on given tokens -----------------------------------------------------------------


def sampler_logprobs(lm) -> torch.Tensor:
    """log p of each sequence's last FORCED tokens, cached and padded as in rollout.generate."""
    sequences = random_sequences(lm.config.vocab_size)
    beginnings = [sequence[:-FORCED] for sequence in sequences]
    tokens = torch.stack([sequence[-FORCED:] for sequence in sequences])  # [sequences, FORCED]
    ids, mask = left_padded(beginnings, lm.device)

    seen = []

    def forced(so_far: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        seen.append(logits)
        token = tokens[:, so_far.shape[1] - ids.shape[1], None].to(logits.device)
        return torch.full_like(logits, -torch.inf).scatter_(1, token, 0.0)

    generated(lm, ids, mask, prefill(lm, beginnings), forced, FORCED)
    logits = torch.stack(seen, dim=1)  # [sequences, FORCED, V]
    return logprobs_of(logits.flatten(0, 1), tokens.flatten())
