"""Is what is trained and sampled the model that `from_pretrained` gives? Asked at every load.

A head with a scale, a buffer that stands in no file, dropout, a cache that a layer cannot use: any
of these trains or samples another model without an error. So a few tokens go three ways: through
the model that `from_pretrained` gave, through `Policy`, and through `generate` with the sampler's
own cache. Where log-probabilities and entropies differ by more than rounding does, the model is
refused.

The check runs some 50 tokens: one forward pass of `Policy`, and FORCED + 1 of the sampler, on every
rank. The model's own pass runs on the first rank's GPU before anything else is there: 2 bytes a
parameter for that moment (65 GB for 32 billion). Where the GPU lacks the room it runs on the CPU,
in seconds to a minute. The check cannot see what only shows beyond the longest of LENGTHS (a
sliding window, a rotary scheme that begins later), nor a difference below the bound, which in
bfloat16 is wide.

All of it is at temperature 1, where a difference between logits is one between log-probabilities.
Rows are those of all tokens but the first of each sequence: [2, n], log-probability and entropy.
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

LENGTHS = (24, 17, 9)  # of three sequences: those shorter than the first are padded
FORCED = 6  # last tokens of each, which the sampler is made to choose

# Up to what a difference is rounding: nats, mean over the tokens' log-probabilities and entropies.
# Seen in float32: 1e-6. In bfloat16 on a CPU, in random models of 24 layers: 0.012.
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.1}


def computation_dtype() -> torch.dtype:
    """The dtype in which a policy computes: see ranks.shard."""
    return torch.bfloat16 if this_device().type == "cuda" else torch.float32


def random_sequences(vocabulary: int) -> list[torch.Tensor]:
    """Sequences of the LENGTHS, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=generator) for length in LENGTHS]


# ---- the reference -------------------------------------------------------------------------------


@torch.no_grad()
def reference_rows(name: str | Path, lm: torch.nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """Rows by the model's own forward pass in `dtype`, without padding and cache: [2, n], CPU.

    lm: as from_pretrained gives it. It runs where it is: training leaves it on the CPU, so that a
    model which only fits a GPU in shards is checked, too. Raises UserError where the model does not
    run, or a row is NaN or infinite.
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
    return "its weights are finite, and its log-probabilities are not"


def rows_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Rows of logits [n, V] and the tokens [n] that they foretell: [2, n] float32 on the CPU."""
    logp = logits.float().cpu().log_softmax(-1)
    logprob = logp.gather(1, tokens[:, None]).squeeze(1)
    entropy = -(logp.exp() * logp).nan_to_num().sum(1)  # 0 log 0 = 0
    return torch.stack([logprob, entropy])


# ---- the check -----------------------------------------------------------------------------------


@torch.no_grad()
def check_policy(name: str | Path, policy: Policy, expected: torch.Tensor) -> None:
    """Hold the policy and its sampler against `reference_rows`. All ranks call; UserError on all.

    policy: at temperature 1.
    """
    in_training = difference(policy_rows(policy), expected)
    bound = BOUNDS[computation_dtype()]
    if not in_training <= bound:
        raise UserError(
            f"--model {name}: log-probabilities of {type(policy.lm).__name__} as trained here are "
            f"{in_training:.2g} nats from those of from_pretrained (rounding is up to {bound:g}): "
            "its architecture has something that is not known here, and it cannot be trained"
        )

    with policy.plain() as lm:
        check_sampler(name, lm, expected)


@torch.no_grad()
def pack_where_equal(policy: Policy) -> None:
    """Let the policy pack its micro-batches, if the numbers stay. All ranks call.

    StableLM, for one, takes a packed row and attends over all of it: it stays padded.
    """
    if not can_pack(policy.lm):
        return
    padded = policy_rows(policy)
    policy.pack(True)
    if not difference(policy_rows(policy), padded) <= BOUNDS[computation_dtype()]:
        policy.pack(False)


@torch.no_grad()
def check_sampler(name: str | Path, lm, expected: torch.Tensor) -> None:
    """Hold the sampler's distributions against `reference_rows` of the same model, on all ranks."""
    of_each = expected.split([length - 1 for length in LENGTHS], dim=1)
    expected = torch.cat([rows[:, -FORCED:] for rows in of_each], dim=1)
    in_sampling = difference(sampler_rows(lm), expected)
    bound = BOUNDS[lm.dtype]
    if not in_sampling <= bound:
        raise UserError(
            f"--model {name}: log-probabilities of {type(lm).__name__} in sampling, with a cache "
            f"and padding, are {in_sampling:.2g} nats from its own (rounding is up to {bound:g}): "
            "it cannot be sampled here"
        )


def policy_rows(policy: Policy) -> torch.Tensor:
    """Rows of the policy, by one padded or packed batch: [2, n]."""
    sequences = random_sequences(policy.lm.config.vocab_size)
    ids = pad_sequence(sequences, batch_first=True).to(this_device())
    length = torch.tensor(LENGTHS, device=this_device())
    rows = policy(ids, torch.ones_like(length), length - 1)
    return torch.stack([rows.logprob, rows.entropy]).cpu()


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The mean difference of rows on the rank where it is largest; inf where there is a NaN."""
    mean = (a - b).abs().mean().nan_to_num(nan=torch.inf)
    if rank_and_world()[1] > 1:
        mean = mean.to(this_device())
        dist.all_reduce(mean, dist.ReduceOp.MAX)
    return float(mean)


# ---- the sampler on given tokens -----------------------------------------------------------------


def sampler_rows(lm) -> torch.Tensor:
    """Rows of each sequence's last FORCED tokens, cached and padded as rollout.generate does it."""
    sequences = random_sequences(lm.config.vocab_size)
    beginnings = [sequence[:-FORCED] for sequence in sequences]
    tokens = torch.stack([sequence[-FORCED:] for sequence in sequences])  # [sequences, FORCED]
    ids, mask = left_padded(beginnings, lm.device)

    def forced(i: int, so_far: torch.Tensor) -> list[int]:
        return [int(tokens[i, len(so_far) - ids.shape[1]])]

    with without_generation_config(lm):  # a model's own would forbid some of these tokens
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
