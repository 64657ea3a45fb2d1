"""How far a stage of a step is: a bar on a terminal, a line a minute where the output is piped."""

import sys
import time

from tqdm import tqdm

from infra.ranks import speaks

QUIET = 60  # seconds between two lines


class Progress:
    """The progress of one stage, counted in tokens; shown by the first rank, on standard error.

    A stage of less than a minute leaves no line in a log, and its bar goes when it is closed. A
    stage that an exception ends leaves its bar where it stood.
    """

    def __init__(self, stage: str, total: int):
        self.stage = stage
        self.total = total
        self.done = 0
        self.started = time.monotonic()
        self.next_line = self.started + QUIET

        self.silent = not speaks()
        self.bar = None
        if not self.silent and sys.stderr.isatty():
            self.bar = tqdm(total=total, desc=stage, unit=" tokens", leave=False, delay=1)

    def add(self, tokens: int) -> None:
        """`tokens` more are done."""
        self.show(self.done + tokens, self.total)

    def show(self, done: int, total: int) -> None:
        """`done` of `total` tokens are done; of sampling, `total` is only the most there may be."""
        more = done - self.done
        self.done = done
        self.total = total
        if self.silent:
            return
        if self.bar is not None:
            self.bar.total = total
            self.bar.update(more)
        elif time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + QUIET
            seconds = time.monotonic() - self.started
            print(
                f"  {self.stage}: {done:,} of at most {total:,} tokens after {seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
