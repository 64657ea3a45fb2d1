"""Compares chunked sampling with one plain call to Hugging Face `generate` (`rollouts`).

Models are randomly initialised with a vocabulary of 4,096. Responses have scripted lengths: all
equal, mildly mixed, or with one response in ten that is ten times as long as the others.
"""

from collections.abc import Iterator
from functools import partial

from benchmarks.scripted import plain_generate, random_model, sampled
from benchmarks.timing import alternate, ratios, spread
from studies.tables import print_table

VOCABULARY = 4096
WIDE = 256
MODELS = ((64, 256), (WIDE, 128))  # hidden size, responses

MIXES = {  # lengths of the 256 responses in tokens
    "even": [128] * 256,
    "mild": [64 + i % 129 for i in range(256)],
    "heavy": [640 if i % 10 == 0 else 64 for i in range(256)],
}

HEADER = ("model", "lengths", "plain, tokens/s", "chunked, tokens/s", "chunked / plain time")


def rollouts(args) -> list[dict]:
    """Chunked sampling against one plain `generate` call, in tokens per second."""
    rows = []
    print_table(HEADER, measured(args.repetitions, rows))
    return rows


def measured(repetitions: int, rows: list[dict]) -> Iterator[list[str]]:
    """The table's lines, one by one. Adds the seconds behind each line to `rows`."""
    for hidden, count in MODELS:
        lm = random_model(hidden, VOCABULARY)
        for mix, all_lengths in MIXES.items():
            lengths = all_lengths[:count]
            functions = {
                "plain": partial(plain_generate, lm, lengths),
                "chunked": partial(sampled, lm, lengths),
            }
            # The wide model takes minutes.
            seconds = alternate(functions, 1 if hidden == WIDE else repetitions)
            model = f"hidden {hidden}, {len(lengths)} responses"
            rows.append({"model": model, "mix": mix, "tokens": sum(lengths), **seconds})
            speeds = [spread([sum(lengths) / x for x in seconds[name]], 0) for name in functions]
            ratio = spread(ratios(seconds["chunked"], seconds["plain"]), 2)
            yield [model, mix, *speeds, ratio]
