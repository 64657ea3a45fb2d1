"""Shows the progress of a step's stages, and measures how long each takes."""

import sys
import time
from collections import Counter

from tqdm import tqdm

from infra.ranks import speaks


class Progress(tqdm):
    """The progress of one stage, in tokens: a bar on a terminal, one line per minute in a log.

    The first rank prints it to standard error. A stage that ends before its first bar or line is
    due prints nothing.
    """

    monitor_interval = 0  # tqdm then starts no thread

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
            delay=1 if on_terminal else 60,  # seconds before the first output
            mininterval=0.1 if on_terminal else 60,  # seconds between outputs
            bar_format=None if on_terminal else line,
        )

    def show(self, done: int, total: int) -> None:
        """Show that `done` of `total` tokens are done. In sampling, `total` is an upper bound."""
        self.total = total
        self.update(done - self.n)


class Stopwatch:
    """Wall-clock seconds for a step and each of its stages, on this rank."""

    def __init__(self):
        self.started = time.perf_counter()
        self.last_lap = self.started
        self.stages = Counter()  # seconds by stage

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to `stage`. A stage may have several laps."""
        now = time.perf_counter()
        self.stages[f"seconds_{stage}"] += now - self.last_lap
        self.last_lap = now

    def seconds(self) -> dict[str, float]:
        """The metrics `seconds`, the total up to the last lap, and `seconds_STAGE`."""
        return {"seconds": self.last_lap - self.started, **self.stages}
