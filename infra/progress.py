"""How far a stage of a step is: a bar on a terminal, a line a minute in a log."""

import sys

from tqdm import tqdm

from infra.ranks import speaks


class Progress(tqdm):
    """The progress of one stage, counted in tokens; the first rank shows it on standard error.

    A stage that ends before its first bar or line would be due leaves nothing behind.
    """

    monitor_interval = 0  # tqdm then starts no thread of its own

    def __init__(self, stage: str, total: int):
        on_terminal = sys.stderr.isatty()
        line = "  {desc}: {n_fmt} of at most {total_fmt} tokens after {elapsed}\n"
        super().__init__(
            desc=stage,
            total=total,
            unit=" tokens",
            leave=False,
            file=sys.stderr,
            disable=not speaks(),
            delay=1 if on_terminal else 60,  # seconds before the first
            mininterval=0.1 if on_terminal else 60,  # seconds between two
            bar_format=None if on_terminal else line,
        )

    def show(self, done: int, total: int) -> None:
        """`done` of `total` tokens are done; of sampling, `total` is only the most there may be."""
        self.total = total
        self.update(done - self.n)
