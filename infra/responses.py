"""The responses of an evaluation: sampled, and appended to a file of each rank as they come.

A benchmark has a folder in the output, with run.json (infra/folder.py) and responses-RANK.jsonl.
Shapes: P problems, n samples each.
"""

import math
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

from infra.files import append_line, read_lines, write_lines
from infra.ranks import rank_and_world
from rollout import Sample, end_tokens, respond, uniforms

STEP = 0  # of the random numbers: an evaluation has no steps


def saved_responses(folder: Path) -> dict[tuple[int, int], dict]:
    """(problem, sample) -> row, from the files of all ranks of all runs in `folder`."""
    saved = {}
    for path in sorted(folder.glob("responses-*.jsonl")):
        for row in read_lines(path, problem=int, sample=int, response=str):
            saved[row["problem"], row["sample"]] = row
    return saved


@dataclass(frozen=True)
class Wanted:
    """A response that is still to be sampled."""

    benchmark: str
    problem: int  # of the benchmark
    sample: int  # of the problem's n
    prompt: list[int]  # token ids


def missing_responses(
    encoded: dict[str, list[list[int]]], samples: int, folder: Path, rank: int, world: int
) -> list[Wanted]:
    """What this rank has to sample: of its problems, the responses that are not in `folder` yet.

    The first responses to all problems come before the second ones: after them it is known which
    problems have long responses, and those are sampled first (infra/flight.py).
    """
    wanted = []
    counted = 0  # problems of all benchmarks, dealt to the ranks in turn
    for name, prompts in encoded.items():
        saved = saved_responses(folder / name)
        for i, prompt in enumerate(prompts):
            counted += 1
            if counted % world != rank:
                continue
            for sample in range(samples):
                if (i, sample) not in saved:
                    wanted.append(Wanted(name, i, sample, prompt))
    return sorted(wanted, key=attrgetter("sample"))


def sample_missing(lm, tokenizer, encoded: dict, config, folder: Path) -> None:
    """Sample this rank's missing responses to all benchmarks, and append each to its file.

    encoded: the prompts of each benchmark, token ids, by its name; config: an evaluate.Config.

    All benchmarks go through one call of the sampler, so that the ranks wait for one long response
    at the end, and not for one of each benchmark.
    """
    rank, world = rank_and_world()
    files = {name: folder / name / f"responses-{rank}.jsonl" for name in encoded}
    for path in files.values():
        if path.exists():
            # A kill may have left half a line, and the next response must not be glued to it.
            write_lines(path, read_lines(path))

    wanted = missing_responses(encoded, config.samples, folder, rank, world)
    jobs = []
    for each in wanted:
        numbers = partial(
            uniforms, config.seed, STEP, each.problem, each.sample, config.max_new_tokens
        )
        jobs.append((each.prompt, numbers))
    ends = end_tokens(lm, tokenizer)
    between_lines = math.ceil(len(jobs) / 10)  # responses: ten lines of progress
    finished = 0

    def save(i: int, sample: Sample) -> None:
        nonlocal finished
        row = {
            "problem": wanted[i].problem,
            "sample": wanted[i].sample,
            "response": tokenizer.decode(sample.tokens, skip_special_tokens=True),
            "tokens": len(sample.tokens),
            "truncated": sample.tokens[-1] not in ends,
        }
        append_line(files[wanted[i].benchmark], row)
        finished += 1
        if finished % between_lines == 0 or finished == len(jobs):
            print(f"rank {rank} has {finished} of its {len(jobs)} responses", flush=True)

    respond(
        lm,
        tokenizer,
        jobs,
        config.max_new_tokens,
        config.temperature,
        config.top_p,
        config.rollout_rows,
        done=save,
    )
