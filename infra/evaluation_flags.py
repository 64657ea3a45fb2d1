"""The flags of evaluate.py; the defaults are the paper's (App. I)."""

from dataclasses import dataclass

from infra.flags import (
    AtLeastOne,
    PositiveShare,
    SamplingFlags,
    TaskFlags,
    WholeNumber,
    flag,
)

PAPER = "aime24,aime25,aime26,hmmt25_feb,hmmt25_nov,hmmt26_feb,brumo25"  # Table 1


@dataclass
class BenchmarkFlags:
    """What is asked and how often, and from which part of the model's distribution answers come."""

    _argument_group_name = "evaluation"

    benchmarks: str = flag(PAPER, "comma-separated: known sets, local files or hub ids")
    samples: AtLeastOne = flag(16, "responses a problem, the n of avg@n")
    top_p: PositiveShare = flag(0.7, "nucleus sampling")
    limit: WholeNumber = flag(0, "problems of each benchmark, its first ones; 0: all of them")
    regrade: bool = flag(False, "grade the saved responses again; samples nothing")


@dataclass
class BenchmarkSamplingFlags(SamplingFlags):
    """As in training, but for longer responses."""

    max_new_tokens: AtLeastOne = flag(30000, "longest response, tokens")


@dataclass
class BenchmarkMemoryFlags:
    """What is computed does not depend on it, but for rounding: see rollout.py."""

    _argument_group_name = "memory"

    rollout_rows: AtLeastOne = flag(256, "responses a rank samples at a time at most (ours)")


@dataclass
class BenchmarkRunFlags:
    """Where the responses and the averages go."""

    _argument_group_name = "run"

    output_dir: str = flag("", "default: <model>-evaluation, of a hub id evaluation/<name>")


@dataclass
class Config(
    BenchmarkRunFlags, TaskFlags, BenchmarkFlags, BenchmarkSamplingFlags, BenchmarkMemoryFlags
):
    """All flags of an evaluation."""


GROUPS = list(Config.__bases__)  # each under its heading in --help
