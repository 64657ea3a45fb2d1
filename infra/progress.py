"""Without this file a step of minutes would show nothing, and nobody would know what takes long."""

import sys
import time
from collections import Counter
from collections.abc import Iterator

from tqdm import tqdm

from infra.ranks import is_first_rank


class Progress(tqdm):
    """A bar of what is done in one stage, on the first rank; a log gets it once per minute."""

    monitor_interval = 0  # tqdm then starts no thread

    def __init__(self, stage: str, total: int, unit: str = "tokens"):
        pause = 1 if sys.stderr.isatty() else 60  # seconds before each output
        shown = {"unit": f" {unit}", "leave": False, "delay": pause, "mininterval": pause}
        super().__init__(desc=stage, total=total, disable=not is_first_rank(), **shown)


def with_bar(stage: str, micro_batches: list) -> Iterator:
    """The micro-batches, with a bar of the tokens that are done."""
    with Progress(stage, sum(len(micro.token_index) for micro in micro_batches)) as bar:
        for micro in micro_batches:
            yield micro
            bar.update(len(micro.token_index))


class Stopwatch:
    """Wall-clock seconds of each stage of a step, on this rank."""

    def __init__(self):
        self.last_lap = time.perf_counter()
        self.stages = Counter()  # seconds by stage

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to `stage`. A stage may have several laps."""
        now = time.perf_counter()
        self.stages[f"seconds_{stage}"] += now - self.last_lap
        self.last_lap = now

    def seconds(self) -> dict[str, float]:
        """The metrics `seconds_STAGE`, and `seconds`, their sum."""
        return {**self.stages, "seconds": self.stages.total()}
