"""The responses of an evaluation on disk: appended as they come, and known by a fingerprint.

A benchmark has a folder with a file of responses for each rank, and fingerprint.json: all that its
responses depend on. P problems, n samples each.
"""

import json
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from infra.errors import UserError
from infra.files import read_json, read_lines, write_aside
from infra.identity import differences


def saved_responses(folder: Path) -> dict[tuple[int, int], str]:
    """(problem, sample) -> response, from the files of all ranks of all runs in `folder`."""
    saved = {}
    for path in sorted(folder.glob("responses-*.jsonl")):
        for row in read_lines(path, problem=int, sample=int, response=str):
            saved[row["problem"], row["sample"]] = row["response"]
    return saved


def unfinished(saved: dict[tuple[int, int], str], count: int, samples: int) -> list[int]:
    """Which of `count` problems lack some of their `samples` responses."""
    wanted = range(samples)
    return [i for i in range(count) if any((i, sample) not in saved for sample in wanted)]


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


def check_fingerprint(folder: Path, wanted: dict, regrade: bool, rank: int) -> None:
    """Keep `wanted` in a benchmark's folder, or hold it against what is there.

    With `regrade` nothing is sampled, and only the problems have to be the same. Raises UserError
    where the responses in the folder are not those of this model, these problems and flags.
    """
    path = folder / "fingerprint.json"
    if not path.exists():
        if list(folder.glob("responses-*.jsonl")):
            raise UserError(
                f"{folder} holds responses without a fingerprint.json, of an unknown model: "
                "choose another --output-dir"
            )
        if rank == 0 and not regrade:
            folder.mkdir(parents=True, exist_ok=True)
            write_aside(path, json.dumps(wanted, indent=1) + "\n")
        return

    known = read_json(path, flags=dict, model=dict, problems=str)
    changed = []
    if known["problems"] != wanted["problems"]:
        changed.append("other problems")
    if not regrade:
        files = sorted(known["model"].keys() | wanted["model"].keys())
        changed += [
            f"another {file} of the model"
            for file in files
            if known["model"].get(file) != wanted["model"].get(file)
        ]
        changed += differences(known["flags"], wanted["flags"])
    if changed:
        raise UserError(
            f"{folder} holds responses of another evaluation ({'; '.join(changed)}): "
            "choose another --output-dir"
        )
