"""Where official graders of the known sets differ from ours: one Rules for each, and its source.

A test says by its key "rules" under which of them it is run; without it, under our own.
"""

from dataclasses import dataclass

from .sandbox.compare import TOLERANCE


@dataclass(frozen=True)
class Rules:
    """What a program may use, and what counts as the same."""

    memory_mb: int = 0  # of address space, if that is more than Limits has
    tolerance: float = TOLERANCE  # 0 for equality


RULES = {
    "": Rules(),
    # github.com/LiveCodeBench/LiveCodeBench, lcb_runner/evaluation/testing_util.py:
    # convert_line_to_decimals, grade_call_based; reliability_guard names 4 GB and sets no limit.
    "livecodebench": Rules(memory_mb=4096, tolerance=0.0),
    # github.com/evalplus/evalplus, evalplus/eval/__init__.py: unsafe_execute. What is equal the
    # script of a test says.
    "evalplus": Rules(memory_mb=4096),
}
