"""Whose folder is it? A folder belongs to a run id, and what does not carry it is never touched.

`run.json` in a folder holds the id of the run or evaluation that writes there, and its fingerprint:
all that its numbers depend on. Whoever writes there later must be the same. A checkpoint or an
exported model carries the id in its *mark*, a file named NAME-of-ID.json that lists what was
written; so a copy under another name is nobody's. What is being written, and what is about to go,
lies in `writing-ID/`.
"""

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import IO

from infra.errors import UserError
from infra.files import read_json, write_aside
from infra.ranks import shared_by_ranks

RUN_FILE = "run.json"
MODELS = ("model", "best")  # what a run exports into its folder
MODEL_FILES = (".json", ".safetensors", ".txt", ".jinja", ".model")

LOCKED: dict[Path, IO] = {}  # the folders that this process holds, and their open lock files


# ---- one at a time -------------------------------------------------------------------------------


def lock(folder: Path) -> None:
    """Make `folder` and hold it for this process, until `unlock`.

    The lock is the operating system's and goes with the process, however it ends. Raises UserError
    where another process holds it, or the folder cannot be written.
    """
    if folder.resolve() in LOCKED:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "a")  # noqa: SIM115  closing it gives up the lock
    except OSError as error:
        raise UserError(
            f"--output-dir {folder} cannot be written ({error.strerror}): choose another"
        ) from error

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise UserError(
            f"--output-dir {folder} is being written by another process: "
            "wait for it, or choose another"
        ) from error
    except OSError as error:  # some network file systems have no locks
        print(f"{folder} cannot be locked ({error.strerror}): start no second run on it")
    LOCKED[folder.resolve()] = file


def unlock(folder: Path) -> None:
    """Give up the lock of `folder`, if this process has it."""
    file = LOCKED.pop(folder.resolve(), None)
    if file:
        file.close()


# ---- is this the same run? -----------------------------------------------------------------------


def data_hash(problems: list[dict]) -> str:
    """16 hex digits of problems and answers, in their order."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps(problem, sort_keys=True).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def file_hash(path: Path) -> str:
    """32 hex digits of a file's bytes; empty where there is no such file."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def file_hashes(folder: Path, names: list[str]) -> dict[str, str]:
    """The hash of each of these files; ranks share them, and all get all. All ranks call."""

    def hashed(mine: list[str]) -> list[str]:
        return [file_hash(folder / name) for name in mine]

    return dict(zip(names, shared_by_ranks(names, hashed), strict=True))


def fingerprint(settings: dict, data: dict[str, list[dict]], model: Path | None) -> dict:
    """What makes a run or an evaluation the one that it is, a flat dictionary. All ranks call.

    settings: flags, and what else matters.
    data: the problems of each set, by its name.
    model: the folder of the model; weights, config and tokenizer count by their bytes.
    """
    found = dict(settings)
    for name, problems in data.items():
        found[f"{name} problems"] = data_hash(problems)
    if model is not None:
        names = sorted(path.name for path in model.iterdir() if path.suffix in MODEL_FILES)
        for name, value in file_hashes(model, names).items():
            found[f"{name} of the model"] = value
    return found


def read_run(folder: Path) -> dict | None:
    """What run.json holds, None without one. Raises UserError where it is damaged."""
    path = folder / RUN_FILE
    if not path.exists():
        return None
    return read_json(path, id=str, fingerprint=dict)


def write_run(folder: Path, known: dict) -> None:
    write_aside(folder / RUN_FILE, json.dumps(known, indent=1) + "\n")


def claim(folder: Path, now: dict, names: tuple[str, ...], defaults: dict) -> dict:
    """The run.json of `folder`, with the run's id; of a folder without one it is written.

    now: the run's fingerprint.
    names: patterns of what it will write.
    defaults: of settings that may be newer than the run in the folder, what they were then.
    Raises UserError where the folder belongs to another run, or has such files and no run.json.
    """
    known = read_run(folder)
    if known is None:
        found = sorted(path.name for pattern in names for path in folder.glob(pattern))
        if found:
            raise UserError(
                f"{folder} holds {', '.join(found)} of something else (no {RUN_FILE}): "
                "choose another --output-dir"
            )
        known = {"id": uuid.uuid4().hex[:12], "fingerprint": now}
        folder.mkdir(parents=True, exist_ok=True)
        write_run(folder, known)

    before = {name: defaults[name] for name in now if name in defaults} | known["fingerprint"]
    changed = [
        f"{name} {before.get(name)} there, {now.get(name)} here"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise UserError(
            f"{folder} holds another run or evaluation ({'; '.join(changed)}): "
            "choose another --output-dir"
        )
    return known


# ---- what a run may replace ----------------------------------------------------------------------


def check_places(model: Path, folder: Path) -> None:
    """Raise UserError where a run into `folder` would write over the model it starts from."""
    for place in (folder, *(folder / name for name in MODELS)):
        if place.resolve() == model.resolve():
            raise UserError(
                f"--model {model} is where --output-dir {folder} would be written: "
                "choose another --output-dir"
            )


def scratch(folder: Path, run_id: str) -> Path:
    """Where the run writes what is not whole yet; all of it is the run's own."""
    return folder / f"writing-{run_id}"


def mark_file(folder: Path, run_id: str) -> Path:
    """The file by whose name a folder that the run wrote is known, under this name only."""
    return folder / f"{folder.name}-of-{run_id}.json"


def mark(folder: Path, run_id: str, files: dict[str, str | None]) -> None:
    """Note that run `run_id` wrote these files in `folder`, with their hashes where they count."""
    write_aside(mark_file(folder, run_id), json.dumps({"files": files}, indent=1) + "\n")


def written(folder: Path, run_id: str) -> dict[str, str | None] | None:
    """The files that the run wrote in `folder`, and their hashes.

    None where the folder is not the run's; {} where its mark is damaged.
    """
    path = mark_file(folder, run_id)
    if not path.exists():
        return None
    try:
        return read_json(path, files=dict)["files"]
    except UserError:
        return {}


def delete_own(folder: Path, run_id: str) -> None:
    """Delete what the run wrote in a folder, and the folder if nothing else is in it."""
    for name in written(folder, run_id):
        (folder / name).unlink(missing_ok=True)
    mark_file(folder, run_id).unlink()  # last: a kill in between leaves a damaged folder, marked
    if not any(folder.iterdir()):
        folder.rmdir()


def put_in_place(aside: Path, final: Path, run_id: str) -> None:
    """Move a marked folder out of scratch to where it belongs, in one rename.

    What the run wrote there before goes. A folder that holds anything else is kept whole, under
    another name.
    """
    if final.exists():
        own = {*(written(final, run_id) or ()), mark_file(final, run_id).name}
        if all(path.name in own for path in final.iterdir()):
            os.rename(final, aside.with_name(f"{final.name}-before"))
        else:
            number = 1
            while (kept := final.with_name(f"{final.name}-kept-{number}")).exists():
                number += 1
            os.rename(final, kept)
            print(f"{final} held files that this run did not write: it is kept as {kept}")
    os.rename(aside, final)
    shutil.rmtree(aside.parent)
