"""The sampler's law against the scored one, and what responses owe to neighbours (`mismatch`).

Randomly initialised models with the true vocabulary, in float32 and in bfloat16, on this machine:
by how much log p differs between the sampler, which goes token by token with a cache, and scoring,
which sees whole sequences; with the head of the model as it is, and with the float32 head that the
sampler is given. Then: how many of the responses are the same when each is sampled alone.
"""

import copy
import gc

import torch

import rollout
from benchmarks.scripted import END_TOKEN, random_model
from infra.head import give_float32_head
from infra.log import mismatch as distance
from infra.packing import pack
from infra.policy import Policy
from infra.ranks import this_device
from rollout import uniforms
from studies.tables import table_line

HIDDEN = 256
LAYERS = 4
RESPONSES = 24
LENGTH = 32  # tokens
SPREAD = 4.5  # standard deviation of a token's logits: an entropy of some two nats

HEADER = """\
| computation | sampler's head | mean entropy, nats | mean difference of log p, nats | largest \
| KL estimate | responses that are the same alone |
|---|---|---|---|---|---|---|"""


def mismatch(args) -> list[dict]:
    """Print the table of RESULTS.md."""
    print(f"{this_device().type}, torch {torch.__version__}, hidden {HIDDEN}, {LAYERS} layers\n")
    print(HEADER)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for float32_head in (False, True):
            rows.append(measured(dtype, float32_head))
            print(table_row(rows[-1]), flush=True)
            gc.collect()
    return rows


def measured(dtype: torch.dtype, float32_head: bool) -> dict:
    """Sample, score, and sample each response alone."""
    lm = random_model(HIDDEN, layers=LAYERS)
    head = torch.randn(lm.lm_head.weight.shape, generator=torch.Generator().manual_seed(0))
    head *= SPREAD / HIDDEN**0.5  # hidden states are normalised: their numbers have variance 1
    lm.lm_head.weight = torch.nn.Parameter(head)  # tied to the embedding, it repeats its input
    lm = lm.to(this_device(), dtype)
    sampler = copy.deepcopy(lm)
    if float32_head:
        give_float32_head(sampler)

    jobs = [(prompt(i), numbers_of(i)) for i in range(RESPONSES)]
    together = rollout.generate(sampler, jobs, LENGTH, [END_TOKEN])
    alone = [rollout.generate(sampler, [job], LENGTH, [END_TOKEN])[0] for job in jobs]
    same = [a.tokens == b.tokens for a, b in zip(together, alone, strict=True)]

    rollouts = pack(
        [asked for asked, _ in jobs],
        [sample.tokens for sample in together],
        [""] * RESPONSES,
        [END_TOKEN],
        lm.device,
        [sample.logprob for sample in together],
    )
    with torch.no_grad():
        scored = Policy(lm).rows(rollouts, torch.arange(RESPONSES, device=lm.device))
    sampled = torch.cat(rollouts.logprobs).to(lm.device)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "float32_head": float32_head,
        "entropy": float(scored.entropy.mean()),
        "same": sum(same),
        "responses": RESPONSES,
        **distance(scored.logprob, sampled),
    }


def prompt(i: int) -> list[int]:
    """Token ids, of 8 to 31 tokens."""
    return [2 + (7 * i + 3 * t) % 1000 for t in range(8 + i)]


def numbers_of(i: int):
    """What gives the uniform numbers of response i."""

    def numbers():
        return uniforms(0, 0, i, 0, LENGTH)

    return numbers


def table_row(row: dict) -> str:
    """A line of the table from what `measured` returns."""
    return table_line(
        [
            row["dtype"],
            "float32" if row["float32_head"] else "its own",
            f"{row['entropy']:.1f}",
            f"{row['mismatch']:.1e}",
            f"{row['mismatch_max']:.1e}",
            f"{row['mismatch_kl']:.1e}",
            f"{row['same']} of {row['responses']}",
        ]
    )
