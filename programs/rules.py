"""What the official graders of the known sets allow: one Rules for each, and its source.

A test says by its key "rules" under which of them it is run; without it, under our own.
"""

from dataclasses import dataclass, field

from .sandbox.compare import Comparison


@dataclass(frozen=True)
class Rules:
    """What a program finds, and what counts as the same."""

    found: dict = field(default_factory=lambda: {"imports": "sites"})  # client.program_job's
    memory_mb: int = 0  # of address space, if that is more than Limits has
    comparison: Comparison = Comparison()


RULES = {
    "": Rules(),
    # github.com/LiveCodeBench/LiveCodeBench, lcb_runner/evaluation/testing_util.py: import_string,
    # get_stripped_lines, convert_line_to_decimals, grade_call_based; the digits are in
    # compute_code_generation_metrics.py beside it. reliability_guard names 4 GB and sets no limit.
    "livecodebench": Rules(
        found={"imports": "livecodebench", "recursion": 50_000, "digits": 50_000},
        memory_mb=4096,
        comparison=Comparison(tolerance=0.0, leading_lines=False, true_is_one=True),
    ),
    # github.com/evalplus/evalplus, evalplus/eval/__init__.py: unsafe_execute, 4 GB. What is equal
    # the script of a test says.
    "evalplus": Rules(memory_mb=4096),
}
