"""Chunked sampling against one plain call of Hugging Face `generate` (`rollouts`).

On randomly initialised models of 4,096 words and responses of scripted lengths: all equal, mildly
mixed, and one in ten ten times longer than the others.
"""

from functools import partial

from benchmarks.scripted import plain_generate, random_model, sampled
from benchmarks.timing import alternate, ratios, spread
from studies.tables import table_line

VOCABULARY = 4096
WIDE = 256
MODELS = ((64, 256), (WIDE, 128))  # hidden size, responses

MIXES = {  # lengths of 256 responses, tokens
    "even": [128] * 256,
    "mild": [64 + i % 129 for i in range(256)],
    "heavy": [640 if i % 10 == 0 else 64 for i in range(256)],
}

HEADER = """\
| model | lengths | plain, tokens/s | chunked, tokens/s | chunked / plain time |
|---|---|---|---|---|"""


def rollouts(args) -> list[dict]:
    """Chunked sampling against one plain `generate` call, in tokens per second."""
    print(HEADER)
    rows = []
    for hidden, count in MODELS:
        repetitions = 1 if hidden == WIDE else args.repetitions  # the wide one takes minutes
        for mix, all_lengths in MIXES.items():
            row = measured(hidden, mix, all_lengths[:count], repetitions)
            print(table_row(row), flush=True)
            rows.append(row)
    return rows


def measured(hidden: int, mix: str, lengths: list[int], repetitions: int) -> dict:
    """Seconds of one model on one mix of lengths, plain and chunked."""
    lm = random_model(hidden, VOCABULARY)
    functions = {
        "plain": partial(plain_generate, lm, lengths),
        "chunked": partial(sampled, lm, lengths),
    }
    return {
        "model": f"hidden {hidden}, {len(lengths)} responses",
        "mix": mix,
        "tokens": sum(lengths),
        **alternate(functions, repetitions),
    }


def table_row(row: dict) -> str:
    """A line of the table from what `measured` returns."""
    plain_speed = [row["tokens"] / x for x in row["plain"]]
    chunked_speed = [row["tokens"] / x for x in row["chunked"]]
    cells = [
        row["model"],
        row["mix"],
        spread(plain_speed, 0),
        spread(chunked_speed, 0),
        spread(ratios(row["chunked"], row["plain"]), 2),
    ]
    return table_line(cells)
