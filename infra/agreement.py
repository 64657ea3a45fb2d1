"""Is what is trained and sampled the model that `from_pretrained` gives? Asked at every load.

A head with a scale, a buffer that stands in no file, dropout, a cache that a layer cannot use: any
of these trains or samples another model, and no error tells. So a few tokens go three ways: through
the plain model, through `Policy`, and through `generate` with the sampler's own cache. Where their
log-probabilities differ by more than rounding does, the model is refused.

It costs the plain model once more, on the first rank: its files read again, its weights on that
rank's host and device in the dtype of the computation, freed before Adam's moments are made; and on
every rank two forward passes and LED + 1 of the sampler's over 50 tokens. It cannot see what only
shows beyond the longest of LENGTHS (a sliding window, a rotary scheme that begins later), nor a
difference below the bound, which in bfloat16 is wide.

Shapes: L tokens of a sequence, V vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed as dist
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
)

from infra.cache import left_padded, prefill
from infra.errors import UserError
from infra.packed_attention import can_pack
from infra.policy import Policy
from infra.ranks import rank_and_world, this_device

LENGTHS = (24, 17, 9)  # of three sequences: those shorter than the first are padded
LED = 6  # last tokens of each, on which the sampler is led

# Up to what a difference is rounding: nats, mean over the tokens' log-probabilities and entropies.
# Seen in float32: 1e-6. In bfloat16 on a CPU, in random models of 24 layers: 0.012.
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.1}
REPEATED = 1e-4  # of the same pass done twice, in any dtype


@dataclass
class Plain:
    """What is known of the plain model once it is gone; on the CPU, the same on all ranks."""

    sequences: list[torch.Tensor]  # of the LENGTHS, ids drawn at random
    logits: list[torch.Tensor]  # [L, V] float32 of each
    buffers: dict[str, torch.Tensor]  # by name; those that stand in no file are found nowhere else


def computation_dtype() -> torch.dtype:
    """The dtype in which a policy computes: see ranks.shard."""
    return torch.bfloat16 if this_device().type == "cuda" else torch.float32


@torch.no_grad()
def plain_model(folder: Path, config) -> Plain:
    """Load the model as anyone would, on the first rank, and note what it says. All ranks call."""
    known = [None]
    if rank_and_world()[0] == 0:
        lm = AutoModelForCausalLM.from_pretrained(folder, dtype=computation_dtype())
        lm = lm.to(this_device()).eval()
        sequences = random_sequences(config.vocab_size)
        buffers = {name: buffer.cpu() for name, buffer in lm.named_buffers()}
        known = [Plain(sequences, own_logits(lm, sequences), buffers)]
    if rank_and_world()[1] > 1:
        dist.broadcast_object_list(known)
    return known[0]


def random_sequences(vocabulary: int) -> list[torch.Tensor]:
    """Sequences of the LENGTHS, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=generator) for length in LENGTHS]


def own_logits(lm, sequences: list[torch.Tensor]) -> list[torch.Tensor]:
    """[L, V] float32 of each, by the model's own forward pass, without padding and cache."""
    result = []
    for sequence in sequences:
        logits = lm(sequence[None].to(lm.device), use_cache=False).logits[0]
        result.append(logits.float().cpu())
    return result


# ---- the check -----------------------------------------------------------------------------------


@torch.no_grad()
def check_policy(name: str | Path, policy: Policy, plain: Plain) -> None:
    """Hold the policy and its sampler against the plain model. All ranks call; UserError on all."""
    kind = type(policy.lm).__name__
    bound = BOUNDS[computation_dtype()]

    first = policy_rows(policy, plain.sequences)
    repeated = difference(first, policy_rows(policy, plain.sequences))
    if not over_all_ranks(repeated) <= REPEATED:
        raise UserError(
            f"--model {name}: two equal passes through {kind} differ by {repeated:.2g} nats: "
            "something in it is random, and it cannot be trained here"
        )

    in_training = over_all_ranks(difference(first, expected_rows(policy, plain)))
    if not in_training <= bound:
        raise UserError(
            f"--model {name}: log-probabilities of {kind} as trained here are {in_training:.2g} "
            f"nats from those of from_pretrained (rounding is up to {bound:g}): its architecture "
            "has something that is not known here, and it cannot be trained"
        )

    with policy.plain() as lm:
        check_sampler(name, lm, plain.sequences, plain.logits)


@torch.no_grad()
def pack_where_equal(policy: Policy, plain: Plain) -> None:
    """Let the policy pack its micro-batches, if it then still is the plain model. All ranks call.

    StableLM, for one, takes a packed row and attends over all of it: it stays padded.
    """
    if not can_pack(policy.lm):
        return
    policy.pack(True)
    expected = expected_rows(policy, plain)
    packed = over_all_ranks(difference(policy_rows(policy, plain.sequences), expected))
    if not packed <= BOUNDS[computation_dtype()]:
        policy.pack(False)


@torch.no_grad()
def check_sampler(
    name: str | Path, lm, sequences: list[torch.Tensor], logits: list[torch.Tensor]
) -> None:
    """Hold the sampler's distributions against `logits` of the same model, on all ranks."""
    expected = rows_of(
        [each[-LED - 1 : -1] for each in logits], [ids[-LED:] for ids in sequences], 1.0
    )
    sampled = rows_of(led_logits(lm, sequences), [ids[-LED:] for ids in sequences], 1.0)
    in_sampling = over_all_ranks(difference(sampled, expected))
    bound = BOUNDS[lm.dtype]
    if not in_sampling <= bound:
        raise UserError(
            f"--model {name}: log-probabilities of {type(lm).__name__} in sampling, with a cache "
            f"and padding, are {in_sampling:.2g} nats from its own (rounding is up to {bound:g}): "
            "it cannot be sampled here"
        )


def expected_rows(policy: Policy, plain: Plain) -> torch.Tensor:
    """What `policy_rows` should be, by the plain model's logits: [2, sum of L - 1]."""
    logits = [logits[:-1] for logits in plain.logits]
    next_tokens = [sequence[1:] for sequence in plain.sequences]
    return rows_of(logits, next_tokens, policy.temperature)


def policy_rows(policy: Policy, sequences: list[torch.Tensor]) -> torch.Tensor:
    """Log-probabilities and entropies of all tokens but the first of each: [2, sum of L - 1]."""
    ids = pad_sequence(sequences, batch_first=True).to(this_device())
    length = torch.tensor([len(sequence) for sequence in sequences], device=this_device())
    rows = policy(ids, torch.ones_like(length), length - 1)
    return torch.stack([rows.logprob, rows.entropy]).cpu()


def rows_of(
    logits: list[torch.Tensor], tokens: list[torch.Tensor], temperature: float
) -> torch.Tensor:
    """The same of logits [n, V] and the tokens [n] that they foretell: [2, sum of n]."""
    logp = (torch.cat(logits) / temperature).log_softmax(-1)
    logprob = logp.gather(1, torch.cat(tokens)[:, None]).squeeze(1)
    entropy = -(logp.exp() * logp).nan_to_num().sum(1)  # 0 log 0 = 0
    return torch.stack([logprob, entropy])


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The mean over rows; NaN where there is one."""
    return float((a - b).abs().mean())


def over_all_ranks(x: float) -> float:
    """The largest of the ranks' numbers, inf where one is NaN: all come to the same verdict."""
    x = torch.tensor(x).nan_to_num(nan=torch.inf)
    if rank_and_world()[1] > 1:
        x = x.to(this_device())
        dist.all_reduce(x, dist.ReduceOp.MAX)
    return float(x)


# ---- the sampler, led along given tokens ---------------------------------------------------------


class Lead(LogitsProcessor):
    """Notes the logits of each step, and lets nothing but the given token follow."""

    def __init__(self, tokens: torch.Tensor):
        self.tokens = tokens  # [sequences, LED]
        self.logits = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = self.tokens[:, len(self.logits), None]
        self.logits.append(scores.float().cpu())
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


def led_logits(lm, sequences: list[torch.Tensor]) -> list[torch.Tensor]:
    """[LED, V] of each sequence's last tokens, cached and padded as rollout.generate does it."""
    beginnings = [sequence[:-LED] for sequence in sequences]
    lead = Lead(torch.stack([sequence[-LED:] for sequence in sequences]).to(lm.device))
    ids, mask = left_padded(beginnings, lm.device)

    own_config = lm.generation_config
    lm.generation_config = GenerationConfig()  # a model's own would change the logits
    try:
        lm.generate(
            ids,
            attention_mask=mask,
            past_key_values=prefill(lm, beginnings),
            logits_processor=LogitsProcessorList([lead]),
            generation_config=GenerationConfig(do_sample=False, max_new_tokens=LED, pad_token_id=0),
        )
    finally:
        lm.generation_config = own_config
    return list(torch.stack(lead.logits, dim=1))
