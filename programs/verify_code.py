"""The reward of a programming problem (Sec. 6): extract the program from a response and test it.

The program is the last fenced Python block in a response. It earns 1.0 if it passes all tests, else
0.0. The run stops at the first failed test. A test is one of

    {"input": "3 4\\n", "output": "7\\n"}                      standard input and output
    {"function": "add", "args": [3, 4], "expected": 7}       a call, with JSON values
    {"script": "assert add(3, 4) == 7"}                      assertions (HumanEval+, MBPP+)

The program is treated as hostile. README.md explains the sandbox and the separate judge process.

Comparison rules:
1. Outputs are compared line by line and token by token. Spaces around tokens, and blank lines
   before the first and after the last line, are ignored.
2. If a decimal is expected, numbers within 1e-6 of it agree (relative if it exceeds 1). If an
   integer is expected, only an equal number agrees.
3. Returned values follow rule 2. A tuple equals a list, and True equals 1. An object of the
   program's own classes equals nothing.
4. A program that ends with an error fails, whatever it printed before.

A script is faulty if it fails before its first call to the program, never calls it, or lacks a
package. No program passes a faulty script, and a warning is printed. Later errors in a script count
against the program, whose values may have caused them. A test's "rules" key selects an official
grader's rules (rules.py).

Departures from the paper: (1) the paper does not say how programs are run. The limits are ours:
1 GB, and 6 s of CPU time per test as in LiveCodeBench (30 s per script).
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

SCRIPT = 5  # CPU time for a judge, or for a program that a script calls, in units of a call's
SCRIPT_ROOM = 2_000_000  # characters that a script may expect in an answer
JUDGE_MB = 4096  # of address space
MOST_BYTES = 4  # per character in UTF-8
ANSWERED = "answered"  # Outcome.stopped of a program whose judge has ended


def rewards(
    responses: list[str], tests: list[list[dict]], limits: Limits | None = None
) -> list[float]:
    """The reward for each response, given its tests. Runs one program per core at a time.

    Identical programs with the same tests are run once.
    """
    if not responses:
        return []
    asked = {}
    for response, each in zip(responses, tests, strict=True):
        asked[extract_program(response), id(each)] = each
    programs = [program for program, _ in asked]
    sandbox = client.shared()  # started at the first call
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


# ---- extract the program from a response ---------------------------------------------------------

# A line's (margin)(marks)(tag). (?![`~]) keeps matching linear: a run of marks is matched whole.
FENCE = re.compile(r"^([ \t>]*)(`{3,}|~{3,})(?![`~])([^\n`]*)$", re.MULTILINE)
TAG = re.compile(r"\{?\s*\.?(python|py)(3[0-9.]*)?(?![\w+#-])", re.IGNORECASE)
MAX_CHARS = 200_000  # in a program


def extract_program(response: str) -> str | None:
    """The last fenced block tagged as Python, else the last block without a tag, else None.

    A tag is the first word after the opening fence: python, py3, python3.11, {python} or
    python:main.py. An untagged block may show the program's output, so tagged blocks take priority.
    Blocks in other languages are skipped. The margin of a block in a list or a quotation is
    removed. An unclosed block does not count, because the response was cut off.
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
    """Whether a fence closes the block: the same mark, at least as long, and without a tag.

    A fence indented four or more columns further is part of the program, as in a docstring.
    """
    same_mark = fence[2].startswith(opening[2])
    return same_mark and not fence[3].strip() and len(fence[1]) < len(opening[1]) + 4


def without_margin(block: str, margin: str) -> str:
    """A block without the margin of its opening fence. Lines without this margin stay unchanged."""
    bare = margin.rstrip()  # an empty line of a quotation
    lines = ["" if line == bare else line.removeprefix(margin) for line in block.split("\n")]
    return "\n".join(lines)


# ---- run -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """The number of tests that a program passed before it stopped, and the reason."""

    passed: int
    total: int
    stopped: str  # one line; empty if all passed


class Failed(Exception):
    """A test failed. The message is for people."""


def run_tests(
    program: str,
    tests: list[dict],
    limits: Limits | None = None,
    sandbox: client.Sandbox | None = None,
) -> Result:
    """Run a program against its tests, up to the first failed test.

    Raises SandboxBroken if programs cannot be run, and ValueError for an unknown kind of test.
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
    """(kind, rules) of a test. The kind is its key `output`, `function` or `script`."""
    name = test.get("rules", "")
    if name not in RULES:
        raise ValueError(f"a test has unknown rules {name!r}: use {', '.join(RULES)}")
    for kind in RUNNERS:
        if kind in test:
            return kind, RULES[name]
    raise ValueError(f"a test has none of the keys {', '.join(RUNNERS)}: {str(test)[:200]}")


# Each runner yields once per passed test, in order, and raises Failed at the first failed test. All
# tests of a runner have the same rules.


def run_on_inputs(
    program: str, tests: list[dict], limits: Limits, rules: Rules, sandbox: client.Sandbox
) -> Iterator[None]:
    """Run the program once per input, and compare each output before the next run."""
    for test in tests:
        roomy = with_room(limits, len(test["output"]))
        job = {"kind": "run", "text": program, "contest": True, "input": test["input"]}
        (outcome,) = run_jobs(sandbox, (job, roomy))
        check_end(outcome, roomy)
        if outcome.output.strip() != test["output"].strip():  # identical text needs no judge
            job = {"kind": "output", "output": outcome.output, "expected": test["output"]}
            job["tolerance"] = rules.tolerance
            (verdict,) = run_jobs(sandbox, (job, judge_limits(limits, limits)))
            if not list(passes(verdict)):
                raise Failed("printed output that cannot be compared")
        yield


def run_calls(
    program: str, tests: list[dict], limits: Limits, rules: Rules, sandbox: client.Sandbox
) -> Iterator[None]:
    """Run the program once; its judge calls the functions. The CPU limit applies to each call."""
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
        raise Failed("returned a value that cannot be compared")


def passes(verdict: Outcome) -> Iterator[None]:
    """Yield once per test that the judge reports as passed. Raises Failed with its reason."""
    for line in verdict.output.split("\n"):
        if line.startswith(FAILED):
            raise Failed(line.removeprefix(FAILED))
        if line == PASSED:
            yield


def run_scripts(
    program: str, tests: list[dict], limits: Limits, rules: Rules, sandbox: client.Sandbox
) -> Iterator[None]:
    """Run the program once per script; the script calls its functions."""
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
    """Raise Failed and warn if a script is faulty: no program can pass it.

    The exit code decides. The script's output does not, because it may contain the program's text.
    """
    if outcome.code != FAULT:
        return
    last = outcome.errors.strip().rpartition("\n")[2]
    advice = "install the package" if last.startswith("ModuleNotFoundError") else "fix the test"
    reason = f"a test's script cannot judge any program ({excerpt(last)}): {advice}"
    warnings.warn(f"{reason}; it begins: {excerpt(script)}", stacklevel=2)
    raise Failed(reason)


RUNNERS = {"output": run_on_inputs, "function": run_calls, "script": run_scripts}


def with_room(limits: Limits, expected: int) -> Limits:
    """The limits, with room for twice the `expected` characters of output."""
    return replace(limits, output_bytes=max(limits.output_bytes, 2 * MOST_BYTES * expected))


def judge_limits(limits: Limits, called: Limits) -> Limits:
    """The limits of a judge. Its wall clock covers the CPU time of the program it calls."""
    return Limits(
        cpu_seconds=SCRIPT * limits.cpu_seconds,
        wall_seconds=limits.wall_seconds + limits.load * called.cpu_seconds * called.runs,
        load=limits.load,
        memory_mb=JUDGE_MB,
    )


def run_jobs(sandbox: client.Sandbox, *jobs: tuple[dict, Limits]) -> list[Outcome]:
    """The outcomes of a program, or of a judge and the program it calls, on a free server.

    If a supervisor is killed or fails, for example because memory ran out, the jobs run once more
    on a new server. If this fails as well, a known program is run. If the known program works, the
    tested program has failed (Failed); if not, the sandbox is broken (SandboxBroken).
    """
    for _ in range(2):
        with sandbox.server() as server:
            try:
                return server.run(*jobs)
            except (EOFError, OSError, SandboxBroken) as error:
                reason = str(error) or "its processes were killed"
                server.process.kill()
                server.process.wait()
    with sandbox.server() as server:
        known = {"kind": "run", "text": "print(7)", "contest": False, "input": ""}
        try:
            if server.run((known, Limits()))[0].output == "7\n":
                raise Failed(f"broke the sandbox twice: {reason}")
        except (EOFError, OSError, SandboxBroken):
            pass
    raise SandboxBroken(f"the program sandbox broke: {reason}")


def check_end(outcome: Outcome, limits: Limits) -> None:
    """Raise Failed if a program was stopped or ended with an error."""
    reasons = {
        "cpu": f"more than {limits.cpu_seconds:g} s of CPU time",
        "wall": f"not finished after {limits.wall_seconds:g} s of idle time",
        "output": "too much output",
    }
    if outcome.stopped:
        raise Failed(reasons[outcome.stopped])
    if outcome.code < 0:
        raise Failed(f"killed by signal {-outcome.code}")
    if outcome.code > 0:
        last = outcome.errors.strip().rpartition("\n")[2]
        raise Failed(f"ended with code {outcome.code}: {excerpt(last)}")
