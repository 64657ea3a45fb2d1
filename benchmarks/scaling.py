"""How a step of the toy grows (`scaling`): with responses, their length, group size and ranks."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

import toy
import train
from benchmarks.stages import Step, prepared_step, stages
from benchmarks.timing import alternate, peak_memory
from delta import delta_coefficients
from infra.policy import Policy
from studies.tables import table_line

RESPONSES = (64, 128, 256, 512)
LENGTHS = (40, 80, 160, 320)  # tokens
TOKENS = tuple(2**k for k in range(15, 21))
HIDDEN = 256  # of the coefficients alone
RESPONSES_A_STEP = 128  # of which a larger group leaves fewer prompts
GROUP_SIZES = (4, 8, 16, 32)
RANKS = (1, 2)

STAGES = ("sampling", "old_logprobs", "update", "coefficients")  # as the table's columns
HEADER = """\
| what grows | sizes | sampling | log-probabilities | update | coefficients \
| growth of the peak, GB |
|---|---|---|---|---|---|---|"""


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """The slope of log seconds against log size: 1 where seconds grow in proportion."""
    slope, _ = np.polyfit(np.log(sizes), np.log(seconds), 1)
    return float(slope)


def medians(functions: dict, repetitions: int) -> dict[str, float]:
    """Median seconds of each function, called in turn."""
    seconds = alternate(functions, repetitions)
    return {name: statistics.median(values) for name, values in seconds.items()}


def scaling(args) -> list[dict]:
    """Print exponents as one size doubles and the others stay, then seconds of whole steps."""
    print(HEADER)
    return [
        growth_of_a_step("responses", RESPONSES, step_of_responses, args.repetitions),
        growth_of_a_step("response length", LENGTHS, step_of_length, args.repetitions),
        growth_of_coefficients(args.repetitions),
        steps_by_group_size(),
        steps_by_ranks(),
    ]


# ---- the stages, and the coefficients alone ------------------------------------------------------


def step_of_responses(count: int) -> Step:
    """A step of the toy on `count` responses of 40 tokens, 4 updates."""
    return prepared_step(Policy(toy.build_model()), 40, count, 4, 4096)


def step_of_length(length: int) -> Step:
    """A step of the toy on 64 responses of `length` tokens, 4 updates."""
    return prepared_step(Policy(toy.build_model()), length, 64, 4, 4096)


def one_step(prepare: Callable[[int], Step], size: int) -> Callable[[], None]:
    """A function that goes once through all stages of the step of this size."""
    functions = stages(prepare(size))

    def run():
        for function in functions.values():
            function()

    return run


def growth_of_a_step(
    what: str, sizes: tuple[int, ...], prepare: Callable[[int], Step], repetitions: int
) -> dict:
    """Print a line of the table: the exponents of all stages, and the peak at each size."""
    seconds = {size: medians(stages(prepare(size)), repetitions) for size in sizes}
    memory = [peak_memory(one_step, prepare, size) for size in sizes]

    exponents = []
    for stage in STAGES:
        exponents.append(exponent(sizes, [seconds[size][stage] for size in sizes]))

    cells = [
        what,
        ", ".join(str(size) for size in sizes),
        *(f"exponent {x:.2f}" for x in exponents),
        ", ".join(f"{gb:.2f}" for gb in memory),
    ]
    print(table_line(cells), flush=True)
    return {
        "what": what,
        "sizes": sizes,
        "seconds": seconds,
        "exponents": exponents,
        "memory_gb": memory,
    }


def growth_of_coefficients(repetitions: int) -> dict:
    """Print the exponent of DelTA's coefficients alone, over the number of tokens."""
    seconds = []
    for n in TOKENS:
        v = torch.randn(n, HIDDEN)
        advantage = torch.randn(n)
        coefficients = partial(delta_coefficients, v, advantage)
        seconds += medians({"coefficients": coefficients}, repetitions).values()

    print(
        f"\ncoefficients alone, H = {HIDDEN}, {TOKENS[0]:,} to {TOKENS[-1]:,} tokens: "
        f"exponent {exponent(TOKENS, seconds):.2f} (1 is linear)"
    )
    return {"what": "tokens", "sizes": TOKENS, "seconds": seconds}


# ---- whole steps, in processes of their own ------------------------------------------------------


def seconds_a_step(flags: list[str], ranks: int = 1) -> float:
    """Median seconds of a step of train.py on the toy, one thread a rank; not of the first two."""
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        command += [train.__file__, "--steps", "8", "--eval-data", "", "--output-dir", folder]
        subprocess.run(
            command + flags,
            check=True,
            capture_output=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    return statistics.median(seconds[2:])


def steps_by_group_size() -> dict:
    """Seconds of a step as groups grow and their number falls."""
    seconds = {}
    for size in GROUP_SIZES:
        prompts = RESPONSES_A_STEP // size
        flags = f"--prompts {prompts} --mini-batch {prompts // 4} --group-size {size}"
        seconds[f"--group-size {size}"] = seconds_a_step(flags.split())
    return printed("group size", seconds)


def steps_by_ranks() -> dict:
    """Seconds of a step on more and more ranks."""
    seconds = {f"ranks {count}": seconds_a_step([], count) for count in RANKS}
    return printed("ranks", seconds)


def printed(what: str, seconds: dict[str, float]) -> dict:
    """Print seconds of a step in each case; what `scaling` returns of them."""
    cases = ", ".join(f"{case}: {value:.2f}" for case, value in seconds.items())
    print(f"{what}: seconds a step of the toy, one thread a rank: {cases}", flush=True)
    return {"what": what, "seconds": list(seconds.values())}
