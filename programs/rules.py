"""Rules in which official graders differ from ours, with their sources.

A test's "rules" key selects an entry in RULES. A test without the key follows our rules.
"""

from dataclasses import dataclass

from .sandbox.compare import TOLERANCE


@dataclass(frozen=True)
class Rules:
    """A program's memory limit, and the tolerance for comparisons."""

    memory_mb: int = 0  # of address space; the larger of this and Limits.memory_mb applies
    tolerance: float = TOLERANCE  # 0 for exact equality


RULES = {
    "": Rules(),
    # github.com/LiveCodeBench/LiveCodeBench, lcb_runner/evaluation/testing_util.py:
    # convert_line_to_decimals, grade_call_based; reliability_guard names 4 GB and sets no limit.
    "livecodebench": Rules(memory_mb=4096, tolerance=0.0),
    # github.com/evalplus/evalplus, evalplus/eval/__init__.py: unsafe_execute. The test's script
    # does the comparison.
    "evalplus": Rules(memory_mb=4096),
}
