"""The responses of an evaluation on disk: appended as they come, and known by a fingerprint.

A benchmark has a folder with a file of responses for each rank, and fingerprint.json: all that its
responses depend on. P problems, n samples each.
"""

import json
from pathlib import Path

from infra.errors import UserError
from infra.files import append_line, read_json, read_lines, write_aside
from infra.identity import differences
from infra.packing import Rollouts


def saved_responses(folder: Path) -> dict[tuple[int, int], str]:
    """(problem, sample) -> response, from the files of all ranks of all runs in `folder`."""
    saved = {}
    for path in sorted(folder.glob("responses-*.jsonl")):
        for row in read_lines(path, "problem", "sample", "response"):
            saved[row["problem"], row["sample"]] = row["response"]
    return saved


def unfinished(saved: dict[tuple[int, int], str], count: int, samples: int) -> list[int]:
    """Which of `count` problems lack some of their `samples` responses."""
    wanted = range(samples)
    return [i for i in range(count) if any((i, sample) not in saved for sample in wanted)]


def append_responses(path: Path, rollouts: Rollouts, chosen: list[int], samples: int) -> None:
    """Append `samples` responses to each of the problems `chosen`, one line a response."""
    for i, text in enumerate(rollouts.texts):
        row = {
            "problem": chosen[i // samples],
            "sample": i % samples,
            "response": text,
            "tokens": int(rollouts.response_length[i]),
            "truncated": bool(rollouts.truncated[i]),
        }
        append_line(path, row)


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

    known = read_json(path, *wanted)
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
