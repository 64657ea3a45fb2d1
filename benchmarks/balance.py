"""What padding and waiting for each other take of a mini-batch's work (`balance`).

Simulated: 512 responses of random lengths, an update of the paper's size, are dealt to the ranks by
infra/balance.py, in micro-batches of 24,576 tokens, and cost what its Layout says for Qwen3-8B.
Each step of the ranks takes as long as the slowest. "by count" is without looking at the work:
sorted by length, and dealt in turn.
"""

import numpy as np

from infra.balance import Layout, shares
from studies.tables import table_line

RESPONSES = 512
PROMPT = 200  # tokens
LONGEST = 20480
BUDGET = 24576
EQUAL_AT = 51_000.0  # tokens; infra.architecture.attention_equals_rest of Qwen3-8B
WORLDS = (8, 64)

HEADER = """\
| responses | ranks | by count, padded | balanced, padded | balanced, packed |
|---|---|---|---|---|"""


def lengths_of(mix: str) -> list[int]:
    """Tokens of prompt and response, always the same ones."""
    rng = np.random.default_rng(0)
    if mix == "a tail: one in ten eight times 1,500":
        response = np.where(np.arange(RESPONSES) % 10 == 0, 8 * 1500, 1500)
    else:
        median, spread = MIXES[mix]
        response = np.exp(rng.normal(np.log(median), spread, RESPONSES))
    return (PROMPT + np.minimum(response, LONGEST)).astype(int).tolist()


MIXES = {  # median and log-spread of a log-normal length
    "log-normal, median 800": (800, 0.6),
    "log-normal, median 3,000": (3000, 0.8),
    "log-normal, median 12,000": (12000, 0.5),
    "a tail: one in ten eight times 1,500": None,
}


def balanced(lengths: list[int], world: int, layout: Layout) -> list[list[list[int]]]:
    """The micro-batches of every rank, as lengths."""
    falling = sorted(lengths, reverse=True)
    ranks = shares(falling, BUDGET, world, layout)
    return [[[falling[i] for i in group] for group in groups] for groups in ranks]


def by_count(lengths: list[int], world: int, layout: Layout) -> list[list[list[int]]]:
    """The same, each rank's share by its place in the order of lengths alone."""
    falling = sorted(lengths, reverse=True)
    ranks = [balanced(falling[rank::world], 1, layout)[0] for rank in range(world)]
    steps = max(map(len, ranks))
    return [groups + [[]] * (steps - len(groups)) for groups in ranks]


def useful_share(ranks: list[list[list[int]]], layout: Layout) -> tuple[int, float]:
    """(steps, share of the ranks' time in which they work on tokens that are there)."""
    alone = Layout(packed=True, equal_at=layout.equal_at)
    useful = sum(alone.cost(group) for groups in ranks for group in groups)
    seconds = 0.0
    for step in zip(*ranks, strict=True):
        seconds += max(layout.cost(group) for group in step)
    return len(ranks[0]), useful / (seconds * len(ranks))


def balance(args) -> list[dict]:
    """Print the table; `args` are bench.py's, of which it needs none."""
    print(HEADER)
    padded = Layout(packed=False, equal_at=EQUAL_AT)
    packed = Layout(packed=True, equal_at=EQUAL_AT)
    rows = []
    for mix in MIXES:
        lengths = lengths_of(mix)
        for world in WORLDS:
            useful = [
                useful_share(by_count(lengths, world, padded), padded),
                useful_share(balanced(lengths, world, padded), padded),
                useful_share(balanced(lengths, world, packed), packed),
            ]
            cells = [f"{share:.0%} in {steps} steps" for steps, share in useful]
            print(table_line([mix, world, *cells]), flush=True)
            rows.append({"mix": mix, "ranks": world, "steps and useful share": useful})
    return rows
