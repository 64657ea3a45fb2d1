"""Checks at every load that training and sampling use the model that `from_pretrained` loads.

A head with a scale, a buffer that is in no file, dropout, or a cache that a layer cannot use would
train or sample another model without an error. So a few tokens run through the model of
`from_pretrained`, through `Policy`, and through `generate` with the sampler's cache. If
log-probabilities or entropies differ by more than rounding, the model is refused.

The check runs some 50 tokens: one forward pass of `Policy`, and FORCED + 1 of the sampler, on every
rank. The reference pass for training runs on the first rank's host, in seconds to a minute, with a
copy of the weights in the dtype of the computation. The check cannot detect differences beyond the
longest of LENGTHS (a sliding window, a rotary scheme that starts later) or below the bound, which
is wide in bfloat16.

The temperature is 1, so differences of logits are differences of log-probabilities.
Rows are [2, n]: log-probability and entropy of all tokens except the first of each sequence.
Shapes: L tokens of a sequence, V vocabulary.
"""

from pathlib import Path

import torch
from torch import distributed as dist
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from infra.architecture import without_generation_config
from infra.cache import left_padded, prefill
from infra.errors import UserError
from infra.model_files import one_line
from infra.packed_attention import can_pack
from infra.policy import Policy
from infra.ranks import rank_and_world, this_device

LENGTHS = (24, 17, 9)  # of three sequences; the shorter ones are padded
FORCED = 6  # last tokens of each, which the sampler is forced to choose

# The largest difference that counts as rounding: nats, mean over log-probabilities and entropies.
# Seen in float32: 1e-6. In bfloat16 on a CPU, in random models of 24 layers: 0.012.
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
def reference_rows(name: str | Path, lm: torch.nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """Rows of the model's forward pass in `dtype`, without padding and cache: [2, n], CPU.

    lm: the model of from_pretrained, run on its device. In training this is the CPU, so a model
    that fits on GPUs only in shards is also checked. Raises UserError if the model does not run, or
    a row is NaN or infinite.
    """
    tensors = {key: x.to(dtype) for key, x in lm.named_parameters()}
    tensors |= dict(lm.named_buffers())

    sequences = random_sequences(lm.config.vocab_size)
    logits = []
    with one_line(name, "its architecture does not run by its config.json"):
        for sequence in sequences:
            ids = sequence[None, :-1].to(lm.device)
            out = functional_call(lm, tensors, (ids,), {"use_cache": False})
            logits.append(out.logits[0])
    rows = rows_of(torch.cat(logits), torch.cat([sequence[1:] for sequence in sequences]))
    if not rows.isfinite().all():
        raise UserError(f"--model {name}: {what_is_not_finite(lm)}: these weights are damaged")
    return rows


def what_is_not_finite(lm: torch.nn.Module) -> str:
    """The first parameter that holds a NaN or infinity, as part of a sentence."""
    for key, parameter in lm.named_parameters():
        if not parameter.isfinite().all():
            return f"{key} holds NaN or infinite numbers"
    return "its weights are finite, but its log-probabilities are not"


def rows_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Rows of logits [n, V] and the tokens [n] that they predict: [2, n] float32 on the CPU."""
    logp = logits.float().cpu().log_softmax(-1)
    logprob = logp.gather(1, tokens[:, None]).squeeze(1)
    entropy = -(logp.exp() * logp).nan_to_num().sum(1)  # 0 log 0 = 0
    return torch.stack([logprob, entropy])


# ---- the check -----------------------------------------------------------------------------------


@torch.no_grad()
def check_policy(name: str | Path, policy: Policy, expected: torch.Tensor) -> None:
    """Compare the policy and its sampler with `reference_rows`. All ranks call; UserError on all.

    policy: at temperature 1.
    """
    in_training = difference(policy_rows(policy), expected)
    bound = BOUNDS[computation_dtype()]
    if not in_training <= bound:
        raise UserError(
            f"--model {name}: log-probabilities of {type(policy.lm).__name__} as trained here are "
            f"{in_training:.2g} nats from those of from_pretrained (rounding is up to {bound:g}): "
            "its architecture has an unknown part, so it cannot be trained"
        )

    with policy.plain() as lm:
        check_sampler(name, lm, expected)


@torch.no_grad()
def pack_where_equal(policy: Policy) -> None:
    """Let the policy pack its micro-batches, if the rows stay the same. All ranks call this.

    StableLM, for example, attends over the whole packed row, so it stays padded.
    """
    if not can_pack(policy.lm):
        return
    padded = policy_rows(policy)
    policy.pack(True)
    if not difference(policy_rows(policy), padded) <= BOUNDS[computation_dtype()]:
        policy.pack(False)


@torch.no_grad()
def check_sampler(name: str | Path, lm, expected: torch.Tensor) -> None:
    """Compare the sampler's distributions with `reference_rows` of the same model, on all ranks."""
    of_each = expected.split([length - 1 for length in LENGTHS], dim=1)
    expected = torch.cat([rows[:, -FORCED:] for rows in of_each], dim=1)
    in_sampling = difference(sampler_rows(lm), expected)
    bound = BOUNDS[lm.dtype]
    if not in_sampling <= bound:
        raise UserError(
            f"--model {name}: log-probabilities of {type(lm).__name__} in sampling, with a cache "
            f"and padding, are {in_sampling:.2g} nats from those of a plain forward pass (rounding "
            f"is up to {bound:g}): "
            "it cannot be sampled here"
        )


def policy_rows(policy: Policy) -> torch.Tensor:
    """Rows of the policy on one padded or packed batch: [2, n]."""
    sequences = random_sequences(policy.lm.config.vocab_size)
    ids = pad_sequence(sequences, batch_first=True).to(this_device())
    length = torch.tensor(LENGTHS, device=this_device())
    rows = policy(ids, torch.ones_like(length), length - 1)
    return torch.stack([rows.logprob, rows.entropy]).cpu()


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The mean difference of rows, maximum over ranks; inf if a row has a NaN."""
    mean = (a - b).abs().mean().nan_to_num(nan=torch.inf)
    if rank_and_world()[1] > 1:
        mean = mean.to(this_device())
        dist.all_reduce(mean, dist.ReduceOp.MAX)
    return float(mean)


# ---- the sampler on given tokens -----------------------------------------------------------------


def sampler_rows(lm) -> torch.Tensor:
    """Rows of each sequence's last FORCED tokens, cached and padded like in rollout.generate."""
    sequences = random_sequences(lm.config.vocab_size)
    beginnings = [sequence[:-FORCED] for sequence in sequences]
    tokens = torch.stack([sequence[-FORCED:] for sequence in sequences])  # [sequences, FORCED]
    ids, mask = left_padded(beginnings, lm.device)

    def forced(i: int, so_far: torch.Tensor) -> list[int]:
        return [int(tokens[i, len(so_far) - ids.shape[1]])]

    with without_generation_config(lm):  # the model's config may forbid some of these tokens
        out = lm.generate(
            ids,
            attention_mask=mask,
            past_key_values=prefill(lm, beginnings),
            prefix_allowed_tokens_fn=forced,
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=FORCED,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            ),
        )
    logits = torch.stack(out.logits, dim=1)  # [sequences, FORCED, V]
    return rows_of(logits.flatten(0, 1), tokens.flatten())
