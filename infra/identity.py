"""Whose files are these? Hashes of data and models, the mark of a run, the lock of a folder.

A run, or an evaluation, is what it is by its flags, its data and its model. All three are kept in
its folder, and whoever writes there later is held against them.
"""

import fcntl
import hashlib
import json
import uuid
from pathlib import Path
from typing import IO

from infra.errors import UserError
from infra.files import read_json, write_aside

SMALL = 2**20  # bytes: files up to this size are hashed whole
SAMPLES = 64  # of a larger one as many pieces are
PIECE = 4096  # bytes

RUN_FILE = "run.json"  # in the folder of a run: its id and its data's hashes
MARK_FILE = "exported-by.json"  # in a model folder that a run exported: that run's id
MODELS = ("model", "best")  # what a run exports into its folder

LOCKED: dict[Path, IO] = {}  # the folders that this process holds, and their open lock files


def data_hash(problems: list[dict]) -> str:
    """16 hex digits of problems and answers, in their order."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps(problem, sort_keys=True).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def file_hash(path: Path) -> str:
    """16 hex digits of a file: of all of it, or of SAMPLES pieces of a large one."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        if size <= SMALL:
            digest.update(file.read())
        else:
            for i in range(SAMPLES):
                file.seek(i * (size - PIECE) // (SAMPLES - 1))
                digest.update(file.read(PIECE))
    return digest.hexdigest()[:16]


def model_fingerprint(folder: Path) -> dict[str, str]:
    """Size, time and hash of each file of a model's folder, its subfolders left out."""
    fingerprint = {}
    for path in sorted(folder.iterdir()):
        if path.is_file():
            stat = path.stat()
            fingerprint[path.name] = f"{stat.st_size} {stat.st_mtime_ns} {file_hash(path)}"
    return fingerprint


def differences(before: dict, now: dict) -> list[str]:
    """The keys in which two flat dictionaries differ, with both values."""
    names = sorted(before.keys() | now.keys())
    return [
        f"{name} {before.get(name)} there, {now.get(name)} here"
        for name in names
        if before.get(name) != now.get(name)
    ]


def lock(folder: Path) -> None:
    """Make `folder` and hold it for this process, until `unlock`.

    The lock is the operating system's and goes with the process, however it ends. Raises UserError
    where another process holds it, or the folder cannot be written.
    """
    if folder.resolve() in LOCKED:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115  closing it gives up the lock
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


# ---- runs of train.py ----------------------------------------------------------------------------


def identify_run(folder: Path, data: dict[str, str]) -> str:
    """The id of the run in `folder`, a new one where there is none; `data` are its sets' hashes.

    Raises UserError when the run began with other data, or a model that it did not write stands
    where it will export its own.
    """
    path = folder / RUN_FILE
    known = {"id": uuid.uuid4().hex, "data": data}
    if path.exists():
        known = read_json(path, id=str, data=dict)
    changed = [name for name in data if known["data"].get(name) != data[name]]
    if changed:
        raise UserError(
            f"--output-dir {folder} holds a run on other {' and '.join(changed)} problems, though "
            "of the same name: restore them, or choose another folder"
        )

    for name in MODELS:
        check_export(folder / name, known["id"])
    if not path.exists():
        write_aside(path, json.dumps(known, indent=1) + "\n")
    return known["id"]


def check_places(model: Path, folder: Path) -> None:
    """Raise UserError where a run into `folder` would write over the model it starts from."""
    for place in (folder, *(folder / name for name in MODELS)):
        if place.resolve() == model.resolve():
            raise UserError(
                f"--model {model} is where --output-dir {folder} would be written: "
                "choose another --output-dir"
            )


def marked_by(folder: Path) -> str | None:
    """The id of the run that exported the model in `folder`."""
    path = folder / MARK_FILE
    return read_json(path, id=str)["id"] if path.exists() else None


def mark(folder: Path, run_id: str) -> None:
    """Say that run `run_id` exported the model in `folder`, and may replace it."""
    write_aside(folder / MARK_FILE, json.dumps({"id": run_id}) + "\n")


def check_export(folder: Path, run_id: str) -> None:
    """Raise UserError where a model stands in the way that this run did not write."""
    if folder.exists() and marked_by(folder) != run_id:
        raise UserError(
            f"{folder} holds a model that this run did not write: move it away, "
            "or choose another --output-dir"
        )
