"""The reward of a programming problem (Sec. 6): find the program of a response, and run its tests.

A response's program is its last fenced block in Python. It earns 1.0 if it passes all tests, else
0.0; the first test that it fails ends the matter. A test is one of

    {"input": "3 4\\n", "output": "7\\n"}                      standard input and output
    {"function": "add", "args": [3, 4], "expected": 7}       a call, in JSON's values
    {"script": "assert add(3, 4) == 7"}                      assertions (HumanEval+, MBPP+)

The program is hostile: README.md tells how it is run and judged, in processes of their own.

Rules of the comparison:
1. Outputs agree line by line and token by token; blanks beside tokens, and blank lines before the
   first and behind the last, do not count.
2. Where a decimal is expected, a number that is within 1e-6 of it (relative to it, if it exceeds 1)
   agrees. Where a whole number is, only the same number does.
3. What a function returns agrees like that, too; a tuple is a list, and True is 1. An object of the
   program's own classes is equal to nothing.
4. A program that ends with an error has failed, whatever it printed before.

A script that fails before it calls the program, never calls it or lacks a package passes no
program, and a warning says so. A script's later errors count against the program, whose values may
have caused them. Where the official grader of a set has other rules, its tests name them: rules.py.

Departures from the paper: (1) it does not say how it runs programs; CPU time of 6 s a test (30 s a
script) and 1 GB are ours, 6 s being LiveCodeBench's.
"""

import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from .rules import RULES, Rules
from .sandbox import client, values
from .sandbox.client import Limits, Outcome, SandboxBroken
from .sandbox.judge import FAILED, FAULT, PASSED
from .sandbox.messages import excerpt

SCRIPT = 5  # a judge, and a program under a script, may take as many times the CPU time of a call
SCRIPT_ROOM = 2_000_000  # characters that a script may expect of an answer
JUDGE_MB = 4096  # of address space
MOST_BYTES = 4  # of a character in UTF-8
ANSWERED = "answered"  # how a program is stopped whose judge has ended


def rewards(
    responses: list[str], tests: list[list[dict]], limits: Limits | None = None
) -> list[float]:
    """The reward of each response by its own tests; as many at a time as there are cores.

    A response that comes twice with the same tests is run once.
    """
    if not responses:
        return []
    asked = {}
    for response, each in zip(responses, tests, strict=True):
        asked[extract_program(response), id(each)] = each
    programs = [program for program, _ in asked]
    sandbox = client.shared()  # the processes of this run, started at the first call
    results = sandbox.map(reward_of_program, programs, asked.values(), [limits] * len(asked))
    known = dict(zip(asked, results, strict=True))
    return [known[extract_program(r), id(t)] for r, t in zip(responses, tests, strict=True)]


def reward(response: str, tests: list[dict]) -> float:
    """1.0 if the response's program passes all tests, else 0.0."""
    return reward_of_program(extract_program(response), tests)


def reward_of_program(
    program: str | None, tests: list[dict], limits: Limits | None = None
) -> float:
    if program is None:
        return 0.0
    result = run_tests(program, tests, limits or Limits())
    return float(result.passed == result.total)


# ---- extract: the program of a response ----------------------------------------------------------

# (margin)(marks)(tag) of a line. (?![`~]) keeps it linear: a run of marks is not tried in parts.
FENCE = re.compile(r"^([ \t>]*)(`{3,}|~{3,})(?![`~])([^\n`]*)$", re.MULTILINE)
TAG = re.compile(r"\{?\s*\.?(python|py)(3[0-9.]*)?(?![\w+#-])", re.IGNORECASE)
MAX_CHARS = 200_000  # of a program


def extract_program(response: str) -> str | None:
    """The last fenced block that is tagged as Python, or else that has no tag; None without one.

    A tag is the first word behind the opening fence: python, py3, python3.11, {python} or
    python:main.py. An untagged block never hides a tagged one: it may show what the program prints.
    Blocks in other languages are passed over. A block in a list or a quotation is freed of its
    margin. A block that is not closed is none: the response was cut off.
    """
    programs = {}  # whether it is tagged -> the last such block
    opening = None
    for fence in FENCE.finditer(response):
        if opening is None:
            opening = fence
        elif closes(fence, opening):
            tag = opening[3].strip()
            if tag == "" or TAG.match(tag):
                block = response[opening.end() + 1 : fence.start()]
                programs[tag != ""] = without_margin(block, opening[1])
            opening = None
    program = programs.get(True, programs.get(False))
    if program is None or not program.strip() or len(program) > MAX_CHARS:
        return None
    return program


def closes(fence: re.Match, opening: re.Match) -> bool:
    """Whether a fence closes the block: of the same mark, as long, bare, and no further indented.

    One that is indented by four more belongs to the program, in a docstring, say.
    """
    same_mark = fence[2].startswith(opening[2])
    return same_mark and not fence[3].strip() and len(fence[1]) < len(opening[1]) + 4


def without_margin(block: str, margin: str) -> str:
    """A block's lines without what its opening fence has before it; others stay as they are."""
    bare = margin.rstrip()  # all that an empty line of a quotation has
    lines = ["" if line == bare else line.removeprefix(margin) for line in block.split("\n")]
    return "\n".join(lines)


# ---- run -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How many of the tests a program passed before it stopped, and why it did."""

    passed: int
    total: int
    stopped: str  # one line; empty where all passed


class Failed(Exception):
    """A test was not passed: a message for people."""


def run_tests(
    program: str,
    tests: list[dict],
    limits: Limits | None = None,
    sandbox: client.Sandbox | None = None,
) -> Result:
    """Run a program against its tests, up to the first that fails.

    Raises SandboxBroken when programs cannot be run, and ValueError for a test of no known kind.
    """
    limits = limits or Limits()
    sandbox = sandbox or client.shared()
    if not tests:
        raise ValueError("a problem without tests cannot be graded")
    passed = 0
    try:
        for (kind, rules), group in groupby(tests, group_of):
            allowed = replace(limits, memory_mb=max(limits.memory_mb, rules.memory_mb))
            for _ in RUNNERS[kind](program, list(group), allowed, rules, sandbox):
                passed += 1
    except Failed as failure:
        return Result(passed, len(tests), f"test {passed + 1} of {len(tests)}: {failure}")
    return Result(passed, len(tests), "")


def group_of(test: dict) -> tuple[str, Rules]:
    """(`output`, `function` or `script`, the key that says what kind of test it is; its rules)."""
    name = test.get("rules", "")
    if name not in RULES:
        raise ValueError(f"a test has the rules {name!r}: there are {', '.join(RULES)}")
    for kind in RUNNERS:
        if kind in test:
            return kind, RULES[name]
    raise ValueError(f"a test has none of the keys {', '.join(RUNNERS)}: {str(test)[:200]}")


# Each runner yields once for each test that was passed, in order, and raises Failed. All its tests
# have the same rules.


def run_on_inputs(
    program: str, tests: list[dict], limits: Limits, rules: Rules, sandbox: client.Sandbox
) -> Iterator[None]:
    """A run of the program for each input; what it printed is compared before the next."""
    for test in tests:
        roomy = with_room(limits, len(test["output"]))
        job = {"kind": "run", "text": program, "contest": True, "input": test["input"]}
        (outcome,) = run_jobs(sandbox, (job, roomy))
        check_end(outcome, roomy)
        if outcome.output.strip() != test["output"].strip():  # else there is nothing to judge
            job = {"kind": "output", "output": outcome.output, "expected": test["output"]}
            job["tolerance"] = rules.tolerance
            (verdict,) = run_jobs(sandbox, (job, judge_limits(limits, limits)))
            if not list(passes(verdict)):
                raise Failed("printed what cannot be compared")
        yield


def run_calls(
    program: str, tests: list[dict], limits: Limits, rules: Rules, sandbox: client.Sandbox
) -> Iterator[None]:
    """One run of the program, which its judge calls; the CPU limit is that of a call."""
    asked = []
    for test in tests:
        call = values.dumps([test["function"], test["args"], {}])
        golds = [values.packed(gold) for gold in (test["expected"], *test.get("or", []))]
        asked.append({"call": call, "golds": golds})
    called = {"kind": "calls", "text": program, "contest": True}
    judging = {"kind": "values", "tests": asked, "tolerance": rules.tolerance}
    limits = with_room(limits, max(len(json.dumps(each["golds"])) for each in asked))
    limits = replace(limits, runs=len(tests))

    judge = (judging, judge_limits(limits, limits))
    of_judge, of_program = run_jobs(sandbox, judge, (called, limits))
    passed = 0
    for _ in passes(of_judge):
        passed += 1
        yield
    if passed < len(tests):
        if of_program.stopped != ANSWERED:
            check_end(of_program, limits)
            raise Failed("ended before it answered")
        raise Failed("returned what cannot be compared")


def passes(verdict: Outcome) -> Iterator[None]:
    """Yield once for each test that a judge says was passed. Raises Failed as it says why not."""
    for line in verdict.output.split("\n"):
        if line.startswith(FAILED):
            raise Failed(line.removeprefix(FAILED))
        if line == PASSED:
            yield


def run_scripts(
    program: str, tests: list[dict], limits: Limits, rules: Rules, sandbox: client.Sandbox
) -> Iterator[None]:
    """For each script a run of the program, which the script calls."""
    of_a_call = limits
    limits = with_room(limits, SCRIPT_ROOM)
    limits = replace(limits, cpu_seconds=SCRIPT * limits.cpu_seconds)
    for test in tests:
        script = test["script"]
        if "entry_point" in test:
            script += f"\ncheck({test['entry_point']})\n"
        called = {"kind": "calls", "text": program, "contest": False}
        judging = {"kind": "script", "text": script}
        judge = (judging, judge_limits(of_a_call, limits))
        of_script, of_program = run_jobs(sandbox, judge, (called, limits))
        if of_script.stopped or of_script.code != 0:
            check_script(of_script, script)
            if of_program.stopped != ANSWERED:
                check_end(of_program, limits)
            check_end(of_script, limits)
        yield


def check_script(outcome: Outcome, script: str) -> None:
    """Raise Failed, and warn, where a script failed by itself: no program can pass it.

    Its exit code says so, and not what it wrote, where words of the program may stand.
    """
    if outcome.code != FAULT:
        return
    last = outcome.errors.strip().rpartition("\n")[2]
    advice = "install the package" if last.startswith("ModuleNotFoundError") else "mend the test"
    reason = f"a test's script cannot judge any program ({excerpt(last)}): {advice}"
    warnings.warn(f"{reason}; it begins: {excerpt(script)}", stacklevel=2)
    raise Failed(reason)


RUNNERS = {"output": run_on_inputs, "function": run_calls, "script": run_scripts}


def with_room(limits: Limits, expected: int) -> Limits:
    """Limits that leave room for an answer of so many characters, and twice as many."""
    return replace(limits, output_bytes=max(limits.output_bytes, 2 * MOST_BYTES * expected))


def judge_limits(limits: Limits, called: Limits) -> Limits:
    """The limits of a judge, who waits while the program that it calls computes."""
    return Limits(
        cpu_seconds=SCRIPT * limits.cpu_seconds,
        wall_seconds=limits.wall_seconds + limits.load * called.cpu_seconds * called.runs,
        load=limits.load,
        memory_mb=JUDGE_MB,
    )


def run_jobs(sandbox: client.Sandbox, *jobs: tuple[dict, Limits]) -> list[Outcome]:
    """The outcomes of a program, or of a judge and the program that it calls, on a free server.

    Once more on a new server if a supervisor was killed or failed, by who is short of memory, say.
    A program that has it done twice has failed, if the sandbox still runs one that is known; else
    the sandbox is broken.
    """
    for _ in range(2):
        with sandbox.server() as server:
            try:
                return server.run(*jobs)
            except (EOFError, OSError, SandboxBroken) as error:
                reason = str(error) or "its processes are killed"
                server.process.kill()
                server.process.wait()
    with sandbox.server() as server:
        known = {"kind": "run", "text": "print(7)", "contest": False, "input": ""}
        try:
            if server.run((known, Limits()))[0].output == "7\n":
                raise Failed(f"broke the sandbox twice: {reason}")
        except (EOFError, OSError, SandboxBroken):
            pass
    raise SandboxBroken(f"the sandbox for programs broke: {reason}")


def check_end(outcome: Outcome, limits: Limits) -> None:
    """Raise Failed where a program was stopped or ended with an error."""
    reasons = {
        "cpu": f"more than {limits.cpu_seconds:g} s of CPU time",
        "wall": f"no end after {limits.wall_seconds:g} s without work",
        "output": "too much output",
    }
    if outcome.stopped:
        raise Failed(reasons[outcome.stopped])
    if outcome.code < 0:
        raise Failed(f"killed by signal {-outcome.code}")
    if outcome.code > 0:
        last = outcome.errors.strip().rpartition("\n")[2]
        raise Failed(f"ended with code {outcome.code}: {excerpt(last)}")
