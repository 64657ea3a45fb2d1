"""The reward of a programming problem (Sec. 6): find the program of a response, and run its tests.

A response's program is its last fenced block in Python. It earns 1.0 if it passes all tests, else
0.0; the first test that it fails ends the matter. A test is one of

    {"input": "3 4\\n", "output": "7\\n"}                      standard input and output
    {"function": "add", "args": [3, 4], "expected": 7}       a call, in JSON's values
    {"script": "assert add(3, 4) == 7"}                      assertions (HumanEval+, MBPP+)

The program is hostile. It runs behind the walls of programs/sandbox, is told its input and nothing
else, and cannot report success: what it prints or returns comes back as text, and is compared here.
Even an assertion script runs in another process than the program, which it calls as `add` above.
Plain values pass between the two, as copies: see programs/sandbox/values.py.

Rules of the comparison:
1. Outputs agree line by line and token by token; blanks at the end of a line, and blank lines at
   the end, do not count.
2. Where a decimal is expected, a number that is within 1e-6 of it (relative to it, if it exceeds 1)
   agrees. Where a whole number is, only the same number does.
3. What a function returns agrees like that, too; a tuple is a list. An object of the program's own
   classes is equal to nothing.
4. A program that ends with an error has failed, whatever it printed before.

CPU time decides what takes too long, so that a busy machine fails no right program. A sandbox
that breaks stops the run (SandboxBroken), as does a script that fails before it calls the program,
never calls it or lacks a package: no response is right, or wrong, for lack of a grade. A script's
later errors count against the program, whose values may have caused them.

Departures from the paper: (1) it does not say how it runs programs; CPU time of 6 s a test (30 s a
script) and 1 GB are ours, 6 s being LiveCodeBench's.
"""

import math
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from itertools import groupby

from .sandbox import client, values
from .sandbox.client import Limits, Outcome, SandboxBroken, Server

TOLERANCE = 1e-6
FAULT = 3  # sandbox/program.py ends so where a script fails, whatever program it were to judge
SCRIPT = 5  # a script may take as many times the CPU time of a call: it makes hundreds


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
        for kind, group in groupby(tests, kind_of):
            for _ in RUNNERS[kind](program, list(group), limits, sandbox):
                passed += 1
    except Failed as failure:
        return Result(passed, len(tests), f"test {passed + 1} of {len(tests)}: {failure}")
    return Result(passed, len(tests), "")


def kind_of(test: dict) -> str:
    """`output`, `function` or `script`: the key that says what kind of test it is."""
    for kind in RUNNERS:
        if kind in test:
            return kind
    raise ValueError(f"a test has none of the keys {', '.join(RUNNERS)}: {str(test)[:200]}")


# Each runner yields once for each test that was passed, in order, and raises Failed.


def run_on_inputs(
    program: str, tests: list[dict], limits: Limits, sandbox: client.Sandbox
) -> Iterator[None]:
    """A run of the program for each input."""
    for test in tests:
        room = max(limits.output_bytes, 2 * len(test["output"].encode()))
        # "prelude": with the usual imports done, as on the sites that these problems are from.
        job = {"kind": "run", "text": program, "input": test["input"], "prelude": True}
        outcome = run_job(sandbox, job, replace(limits, output_bytes=room))
        check_end(outcome, limits)
        if not same_output(outcome.output, test["output"]):
            raise Failed(f"{excerpt(outcome.output)} printed, {excerpt(test['output'])} expected")
        yield


def run_calls(
    program: str, tests: list[dict], limits: Limits, sandbox: client.Sandbox
) -> Iterator[None]:
    """One run of the program, which is asked for all calls; the CPU limit is that of a call."""
    calls = [values.dumps([test["function"], test["args"], {}]) for test in tests]
    room = max(limits.output_bytes, 2 * sum(len(values.dumps(test["expected"])) for test in tests))
    job = {"kind": "calls", "text": program, "calls": calls, "prelude": True}
    outcome = run_job(sandbox, job, replace(limits, output_bytes=room))

    # A program that ends early leaves calls without a reply: see below.
    for test, reply in zip(tests, outcome.replies, strict=False):
        value = read_reply(reply)
        golds = [test["expected"], *test.get("or", [])]
        if not any(same_value(value, gold) for gold in golds):
            raise Failed(f"{shown(value)} returned, {shown(golds[0])} expected")
        yield
    if len(outcome.replies) < len(tests):
        check_end(outcome, limits)
        raise Failed("ended before it answered")


def read_reply(reply: str):
    """What a function returned. Raises Failed where it raised, or the reply is none."""
    try:
        answer = values.loads_reply(reply)
    except (ValueError, RecursionError):
        raise Failed("returned what cannot be read") from None
    if "error" in answer:
        raise Failed(excerpt(str(answer["error"])))
    return answer["value"]


def run_scripts(
    program: str, tests: list[dict], limits: Limits, sandbox: client.Sandbox
) -> Iterator[None]:
    """Two processes for each script: it runs in one, and calls the program in the other."""
    limits = replace(limits, cpu_seconds=SCRIPT * limits.cpu_seconds)
    for test in tests:
        script = test["script"]
        if "entry_point" in test:
            script += f"\ncheck({test['entry_point']})\n"
        of_script, of_program = run_pair(sandbox, program, script, limits)
        if of_script.stopped or of_script.code != 0:
            check_script(of_script, script)
            if of_program.stopped != "cancelled":
                check_end(of_program, limits)
            check_end(of_script, limits)
        yield


def check_script(outcome: Outcome, script: str) -> None:
    """Raise SandboxBroken where a script failed by itself: that is no program's fault.

    Its exit code says so, and not what it wrote, where words of the program may stand.
    """
    if outcome.code != FAULT:
        return
    last = outcome.errors.strip().rpartition("\n")[2]
    advice = "install the package" if last.startswith("ModuleNotFoundError") else "mend the test"
    raise SandboxBroken(
        f"a test's script cannot judge any program ({excerpt(last)}): {advice}; "
        f"it begins: {excerpt(script)}"
    )


RUNNERS = {"output": run_on_inputs, "function": run_calls, "script": run_scripts}


def run_job(sandbox: client.Sandbox, job: dict, limits: Limits) -> Outcome:
    """One job on a free server."""

    def run(server: Server) -> Outcome:
        return server.start(job, limits).outcome()

    return on_live_server(sandbox, run)


def run_pair(
    sandbox: client.Sandbox, program: str, script: str, limits: Limits
) -> tuple[Outcome, Outcome]:
    """(script's, program's) outcomes, joined by a socket that carries calls and answers."""
    # While the program computes, the script only waits.
    patience = limits.wall_seconds + limits.load * limits.cpu_seconds
    patient = replace(limits, wall_seconds=patience)

    def run(server: Server) -> tuple[Outcome, Outcome]:
        for_script, for_program = socket.socketpair()
        with for_script, for_program:
            called = {"kind": "calls", "text": program, "prelude": False}
            calling = {"kind": "script", "text": script, "prelude": False}
            answers = server.start(called, limits, for_program)
            questions = server.start(calling, patient, for_script)
        of_script = questions.outcome()
        return of_script, answers.cancel()

    return on_live_server(sandbox, run)


def on_live_server(sandbox: client.Sandbox, run):
    """run(server), and once more on a new server if its supervisor was killed.

    Somebody short of memory may have done that. A program that has it done twice has failed, if the
    sandbox still runs one that is known; else the sandbox is broken.
    """
    for _ in range(2):
        with sandbox.server() as server:
            try:
                return run(server)
            except EOFError:
                server.process.kill()
                server.process.wait()
    with sandbox.server() as server:
        try:
            known = server.start({"kind": "run", "text": "print(7)", "prelude": True}, Limits())
            if known.outcome().output == "7\n":
                raise Failed("its supervisor was killed")
        except EOFError:
            pass
    raise SandboxBroken("the sandbox for programs broke: its processes are killed")


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


def excerpt(text: str) -> str:
    """As much of a text as fits in a line of ours."""
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:77] + "..."


def shown(value) -> str:
    try:
        return excerpt(repr(value))
    except (ValueError, RecursionError):  # a number of too many digits, or too many brackets
        return f"a {type(value).__name__}"


# ---- compare -------------------------------------------------------------------------------------

NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")


def same_output(output: str, expected: str) -> bool:
    """Whether two outputs agree line by line (rule 1)."""
    lines = output.rstrip().split("\n")
    golds = expected.rstrip().split("\n")
    return len(lines) == len(golds) and all(map(same_line, lines, golds))


def same_line(line: str, gold: str) -> bool:
    tokens = line.split()
    golds = gold.split()
    return len(tokens) == len(golds) and all(map(same_token, tokens, golds))


def same_token(token: str, gold: str) -> bool:
    """Whether two tokens are the same text, or numbers that agree (rule 2)."""
    if token == gold:
        return True
    if not NUMBER.fullmatch(token) or not NUMBER.fullmatch(gold):
        return False
    try:
        value, wanted = Decimal(token), Decimal(gold)
        if not gold.lstrip("+-").isdecimal():
            return abs(value - wanted) <= Decimal(TOLERANCE) * max(1, abs(wanted))
        return value == wanted
    except InvalidOperation:  # more digits than a Decimal works with
        return False


def same_value(value, gold) -> bool:
    """Whether a returned value is the expected one (rule 3)."""
    if isinstance(value, list | tuple) and isinstance(gold, list | tuple):
        return len(value) == len(gold) and all(map(same_value, value, gold))
    if isinstance(value, dict) and isinstance(gold, dict):
        if len(value) != len(gold):  # asked first: 1 and "1" are one key below
            return False
        value = {json_key(key): each for key, each in value.items()}
        return value.keys() == gold.keys() and all(same_value(value[k], gold[k]) for k in gold)
    if isinstance(value, bool) != isinstance(gold, bool):
        return False
    if isinstance(gold, float) and isinstance(value, int | float):
        return value == gold or close(value, gold)
    return value == gold


def close(value: int | float, gold: float) -> bool:
    if math.isinf(gold):  # any number is within an infinite tolerance
        return False
    try:
        return abs(value - gold) <= TOLERANCE * max(1.0, abs(gold))
    except OverflowError:  # an integer beyond all floats
        return False


def json_key(key):
    """A key of a dictionary as JSON, in which the tests are written, spells it."""
    return str(key) if isinstance(key, int) and not isinstance(key, bool) else key
