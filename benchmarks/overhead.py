"""What DelTA's coefficients cost, as a share of a training step (`overhead`).

Counted: 2K + 3 passes over v, [N, H] numbers of b bytes each, one of them to see whether all is
finite: (2K + 3) N H b bytes read. (6K + 7) N H operations: a multiplication and an addition for
each number in every centroid's two sides and in every margin, and a comparison. At K = 1,
H = 4,096 and bfloat16 that is 40 kB and 53 kFLOP a token, against 2 x 8.2 billion x 3 FLOP for the
token's forward and backward pass. So memory bandwidth bounds them; how much of it they reach is
told beside a plain sum over the same numbers.

Shapes: N packed response tokens, H hidden size, V vocabulary.
"""

import statistics
from dataclasses import dataclass
from functools import partial

import torch

import toy
from benchmarks.scripted import random_model
from benchmarks.stages import prepared_step, stages
from benchmarks.timing import alternate, ratios, spread
from delta import delta_coefficients
from infra.policy import Policy
from studies.tables import table_line

K = 1
PASSES = 2 * K + 3  # of the coefficients over v
RELEASED_PASSES = K + 2  # of the released code through the model

HEADER = """\
| model | tokens | sampling, s | log-probabilities, s | update, s | coefficients, ms \
| share of the step | K + 2 forward passes over coefficients |
|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Case:
    """A model and a step to measure on it."""

    name: str
    hidden: int | None  # of a model with 151,936 words; None: the toy
    length: int  # of a response, tokens
    responses: int
    mini_batches: int
    micro_batch_tokens: int


CASES = (
    Case("toy, hidden 64, V 30", None, 40, 128, 4, 4096),
    Case("hidden 256, V 151,936", 256, 64, 16, 1, 1024),
    Case("hidden 512, V 151,936", 512, 64, 16, 1, 1024),
    Case("hidden 1024, V 151,936", 1024, 64, 16, 1, 1024),
)
N, H = 100_000, 1024  # of the comparison with a plain sum


def overhead(args) -> list[dict]:
    """DelTA's coefficients as a share of a training step, and beside further forward passes.

    K = 1; also as a share of a plain sum's speed. The last column: the K + 2 forward passes over
    all responses that the released code makes, over our coefficients.
    """
    print(HEADER)
    rows = []
    for case in CASES:
        row = measured(case, args.repetitions)
        print(table_row(row), flush=True)
        rows.append(row)

    medians = []
    for row in rows:
        medians.append(f"{statistics.median(row['share_percent']):.3f} % ({row['model']})")
    print(f"\noverhead of a training step: {', '.join(medians)}")

    return [*rows, against_a_sum(args.repetitions)]


def measured(case: Case, repetitions: int) -> dict:
    """Seconds of the stages of a step, and what follows from them, by repetition."""
    lm = random_model(case.hidden) if case.hidden else toy.build_model()
    step = prepared_step(
        Policy(lm), case.length, case.responses, case.mini_batches, case.micro_batch_tokens
    )
    seconds = alternate(stages(step), repetitions)

    whole_step = [sum(each) for each in zip(*seconds.values(), strict=True)]
    coefficients = seconds["coefficients"]
    return {
        "model": case.name,
        "tokens": case.length * case.responses,
        **seconds,
        "share_percent": ratios(coefficients, whole_step, 100),
        "released_over_ours": ratios(seconds["old_logprobs"], coefficients, RELEASED_PASSES),
    }


def table_row(row: dict) -> str:
    """A line of the table from what `measured` returns."""
    milliseconds = [1e3 * x for x in row["coefficients"]]
    cells = [
        row["model"],
        row["tokens"],
        spread(row["sampling"]),
        spread(row["old_logprobs"]),
        spread(row["update"]),
        spread(milliseconds, 2),
        f"{spread(row['share_percent'])} %",
        spread(row["released_over_ours"], 0),
    ]
    return table_line(cells)


def against_a_sum(repetitions: int) -> dict:
    """The coefficients of N tokens beside as many plain sums over v as they make passes over it."""
    v = torch.randn(N, H)
    advantage = torch.randn(N)
    functions = {"coefficients": partial(delta_coefficients, v, advantage, K), "sum": v.sum}

    seconds = alternate(functions, repetitions)
    floor = ratios(seconds["sum"], seconds["coefficients"], PASSES)
    percent = [100 * x for x in floor]
    print(
        f"at N = {N:,}, H = {H}: {spread(seconds['coefficients'])} s, {spread(percent, 0)} % "
        "of the speed of five plain sums over the same numbers"
    )
    return {"floor": floor, **seconds}
