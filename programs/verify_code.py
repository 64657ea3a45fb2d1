"""The reward of a programming problem (Sec. 6): extract the program from a response and test it.

The program is the last fenced Python block. It earns 1.0 if it passes all tests, else 0.0. A test:

    {"input": "3 4\\n", "output": "7\\n"}                      standard input and output
    {"function": "add", "args": [3, 4], "expected": 7}       a call, with JSON values
    {"script": "assert add(3, 4) == 7"}                      assertions (HumanEval+, MBPP+)

compare.py has the rules for outputs and values, judge.py those for scripts; a faulty script passes
no program, and a warning is printed. A program that ends with an error fails, whatever it printed.
The paper names no limits for programs; those in watch.py are ours.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from answers.thoughts import without_thoughts

from .sandbox import client
from .sandbox.client import Failed
from .sandbox.compare import TOLERANCE, same_output
from .sandbox.judge import ENDED, FAULT, PASSED, RIGHT
from .sandbox.values import excerpt
from .sandbox.watch import Limits, Process

SCRIPT = 5  # CPU limit of a judge, or of a program that a script calls, as a multiple of a call's
JUDGE_MB = 4096  # of address space

# A test's "rules" key -> (least memory in MB, tolerance), as in an official grader.
RULES = {
    "": (0, TOLERANCE),
    # github.com/LiveCodeBench/LiveCodeBench, lcb_runner/evaluation/testing_util.py:
    # convert_line_to_decimals, grade_call_based; reliability_guard names 4 GB and sets no limit.
    "livecodebench": (4096, 0.0),
    # github.com/evalplus/evalplus, evalplus/eval/__init__.py: unsafe_execute. Scripts compare.
    "evalplus": (4096, TOLERANCE),
}


def rewards(responses: list[str], tests: list[list[dict]]) -> list[float]:
    """The reward for each response, given its tests. Runs one program per core at a time.

    Identical programs with the same tests are run once. Raises SandboxBroken.
    """
    keys = [(extract_program(text), id(each)) for text, each in zip(responses, tests, strict=True)]
    asked = dict(zip(keys, tests, strict=True))
    programs = [program for program, _ in asked]
    found = client.shared().threads.map(reward_of_program, programs, asked.values())
    known = dict(zip(asked, found, strict=True))
    return [known[key] for key in keys]


def reward_of_program(program: str | None, tests: list[dict]) -> float:
    """1.0 if there is a program and it passes all tests, else 0.0."""
    return float(program is not None and run_tests(program, tests).passed == len(tests))


# A line's (margin)(marks)(tag), also after <answer>, or before tokens such as </s> or <|im_end|>.
# (?![`~]) keeps matching linear: a run of marks is matched whole.
FENCE = re.compile(
    r"^([ \t>]*)(?:<answer>[ \t]*)?(`{3,}|~{3,})(?![`~])([^\n`]*?)"
    r"(?:[ \t]?(?:</\w{1,9}>|<\|\w{1,20}\|>)){0,3}[ \t]{0,9}$",
    re.MULTILINE,
)
TAG = re.compile(r"\{?\s*\.?(python|py|pypy)(3[0-9.]*)?(?![\w+#-])", re.IGNORECASE)
# A text between triple quotes, with pairs of fences in it.
TEXT = r"(?s:(?P<q>\"{3}|'{3})(?:(?!(?P=q)|```).|```(?:(?!(?P=q)|```).)*+```(?!\w))*+(?P=q))"
FENCE_OR_TEXT = re.compile(f"{FENCE.pattern}|{TEXT}", re.MULTILINE)


def extract_program(response: str) -> str | None:
    """The last fenced block tagged as Python, else the last block without a tag, else None.

    A tag is the first word after the opening fence: python, py3, pypy3, python3.11, {python} or
    python:main.py. An untagged block may show the program's output, so tagged blocks take priority.
    A fence closes a block if it has the same mark, at least as long, and no tag, and is indented by
    less than four more columns; pairs between triple quotes in a block do not count, nor does an
    unclosed block: the response was cut off. The margin of a list or a quotation is removed.
    """
    response = without_thoughts(response)
    programs = {}  # whether it is tagged -> the last such block
    opening = None
    fence = FENCE.search(response)
    while fence:
        if opening is None:
            opening = fence
            margin, mark, tag = fence[1], fence[2], fence[3].strip()
        elif fence[2].startswith(mark) and not fence[3].strip() and len(fence[1]) < len(margin) + 4:
            if tag == "" or TAG.match(tag):
                lines = response[opening.end() + 1 : fence.start()].split("\n")
                bare = margin.rstrip()  # an empty line of a quotation
                lines = ["" if line == bare else line.removeprefix(margin) for line in lines]
                programs[tag != ""] = "\n".join(lines)
            opening = None
        fence = next_fence(response, fence.end(), in_block=opening is not None)
    program = programs.get(True, programs.get(False))
    return program if program and program.strip() else None


def next_fence(response: str, start: int, in_block: bool) -> re.Match | None:
    """The next fence from `start` on. In a block, texts between triple quotes are skipped."""
    if not in_block:  # stray quotes in prose must not hide a program
        return FENCE.search(response, start)
    found = FENCE_OR_TEXT.search(response, start)
    while found and found["q"]:
        found = FENCE_OR_TEXT.search(response, found.end())
    return found


@dataclass(frozen=True)
class Result:
    """The number of tests that a program passed before it stopped, and the reason."""

    passed: int
    total: int
    stopped: str  # one printable line; empty if all passed


def run_tests(
    program: str,
    tests: list[dict],
    limits: Limits | None = None,
    sandbox: client.Sandbox | None = None,
) -> Result:
    """Run a program against its tests, up to the first failed test.

    Raises SandboxBroken if programs cannot be run, and ValueError for an unknown kind of test.
    """
    if not tests:
        raise ValueError("a problem without tests cannot be graded")
    limits = limits or Limits()
    trial = Trial(program, limits.wall_seconds, sandbox or client.shared())
    passed = 0
    try:
        for (kind, rules), group in groupby(tests, group_of):
            memory_mb, tolerance = RULES[rules]
            allowed = replace(limits, memory_mb=max(limits.memory_mb, memory_mb))
            for _ in RUNNERS[kind](trial, list(group), allowed, tolerance):
                passed += 1
    except Failed as failure:
        return Result(passed, len(tests), f"test {passed + 1} of {len(tests)}: {failure}")
    return Result(passed, len(tests), "")


def group_of(test: dict) -> tuple[str, str]:
    """(kind, rules) of a test. The kind is its key `output`, `function` or `script`."""
    kind = next((key for key in RUNNERS if key in test), None)
    rules = test.get("rules", "")
    if kind is None or rules not in RULES:
        known = f"{', '.join(RUNNERS)}, or its rules are not {' or '.join(filter(None, RULES))}"
        raise ValueError(f"a test has none of the keys {known}: {str(test)[:200]}")
    return kind, rules


class Trial:
    """A program under test. All its runs share one wall-clock budget.

    Each runner yields once per passed test, in order, and raises Failed at the first failed test.
    """

    def __init__(self, program: str, wall_seconds: float, sandbox: client.Sandbox):
        self.program = program
        self.wall_left = wall_seconds
        self.sandbox = sandbox

    def run_on_inputs(self, tests: list[dict], limits: Limits, tolerance: float) -> Iterator[None]:
        """Run the program once per input, and compare each output before the next run."""
        for test in tests:
            room = 8 * len(test["output"])  # twice the expected characters, in UTF-8
            roomy = replace(limits, output_bytes=max(limits.output_bytes, room))
            job = {"kind": "run", "text": self.program, "contest": True, "input": test["input"]}
            (ran,) = self.run((job, roomy))
            if reason(ran):
                raise Failed(reason(ran))
            if not same_output(ran.text(), test["output"], tolerance):
                printed, expected = excerpt(ran.text()), excerpt(test["output"])
                raise Failed(f"{printed} printed, {expected} expected")
            yield

    def run_calls(self, tests: list[dict], limits: Limits, tolerance: float) -> Iterator[None]:
        """Run the program once; its judge calls the functions. Each call has its own CPU limit."""
        asked = [[x["function"], x["args"], [x["expected"], *x.get("or", [])]] for x in tests]
        judging = {"kind": "values", "tests": asked, "tolerance": tolerance}
        judge, failure = self.judged(judging, limits)
        for _ in range(judge.text().splitlines().count(PASSED)):
            yield
        if failure is not None:
            raise Failed(failure)

    def run_scripts(self, tests: list[dict], limits: Limits, tolerance: float) -> Iterator[None]:
        """Run the program once per script; the script calls its functions."""
        for test in tests:
            judging = {"entry_point": "", **test, "kind": "script"}
            judge, failure = self.judged(judging, limits)
            if judge.code == FAULT:
                advice = "install the package" if "ModuleNotFound" in failure else "fix the test"
                failure = f"a test's script cannot judge any program ({failure}): {advice}"
                warnings.warn(f"{failure}; it begins: {excerpt(test['script'])}", stacklevel=2)
            if failure is not None:
                raise Failed(failure)
            yield

    def judged(self, judging: dict, limits: Limits) -> tuple[Process, str | None]:
        """Run the program and its judge. Returns (the judge, why the program failed or None)."""
        is_contest = judging["kind"] == "values"
        called = {"kind": "calls", "text": self.program, "contest": is_contest}
        longer = replace(limits, cpu_seconds=SCRIPT * limits.cpu_seconds)
        patient = replace(longer, memory_mb=JUDGE_MB)
        judge, ran = self.run((judging, patient), (called, limits if is_contest else longer))
        if judge.code == RIGHT and not judge.stopped:
            return judge, None
        if ran.stopped or judge.code == ENDED:
            return judge, reason(ran) or "ended before it answered"
        if judge.stopped or judge.code < 0:
            return judge, "gave an answer that could not be judged within the limits"
        return judge, judge.last_error()

    def run(self, *jobs: tuple[dict, Limits]) -> list[Process]:
        """Run a program, or a judge and the program that it calls."""
        ended, idle = self.sandbox.run(self.wall_left, *jobs)
        self.wall_left -= idle
        return ended


RUNNERS = {"output": Trial.run_on_inputs, "function": Trial.run_calls, "script": Trial.run_scripts}


def reason(ran: Process) -> str:
    """Why a program was stopped or ended with an error; empty if neither happened."""
    if ran.stopped:
        return {
            "cpu": f"more than {ran.limits.cpu_seconds:g} s of CPU time",
            "wall": "not finished within the wall-clock budget of all tests",
            "output": "too much output",
            "threads": "too many threads",
        }[ran.stopped]
    if ran.code < 0:
        return f"killed by signal {-ran.code}"
    return f"ended with code {ran.code}: {ran.last_error()}" if ran.code else ""
