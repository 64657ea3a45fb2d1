"""Ownership of folders: a run changes or deletes only files that carry its run id.

`run.json` in a folder holds the id of the run or evaluation that writes there, and its fingerprint:
everything that its results depend on. A later run in the folder must have the same fingerprint. A
checkpoint or an exported model carries the id in its *mark*, a file that lists the files written.
The mark is named NAME-of-ID.json after its folder, so a renamed copy belongs to no run. Files being
written or deleted are in `writing-ID/`.
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
from infra.files import read_json, write_json
from infra.ranks import shared_by_ranks

RUN_FILE = "run.json"
MODELS = ("model", "best")  # exported into the folder of a run
MODEL_FILES = (".json", ".safetensors", ".txt", ".jinja", ".model")

LOCKED: dict[Path, IO] = {}  # folders locked by this process -> their open lock files


# ---- locks ---------------------------------------------------------------------------------------


def lock(folder: Path) -> None:
    """Create `folder` and lock it for this process, until `unlock`.

    The operating system releases the lock when the process ends, however it ends. Raises UserError
    if another process holds the lock, or the folder cannot be written.
    """
    if folder.resolve() in LOCKED:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "a")  # noqa: SIM115  closing it releases the lock
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
            "wait until it ends, or choose another"
        ) from error
    except OSError as error:  # some network file systems do not support locks
        print(f"{folder} cannot be locked ({error.strerror}): do not start a second run in it")
    LOCKED[folder.resolve()] = file


def unlock(folder: Path) -> None:
    """Release the lock of `folder`, if this process holds it."""
    file = LOCKED.pop(folder.resolve(), None)
    if file:
        file.close()


# ---- identity of a run ---------------------------------------------------------------------------


def data_hash(problems: list[dict]) -> str:
    """16 hex digits: the hash of problems and answers, in order."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps(problem, sort_keys=True).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def file_hash(path: Path) -> str:
    """32 hex digits: the hash of a file's bytes; empty if there is no such file."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def file_hashes(folder: Path, names: list[str]) -> dict[str, str]:
    """The hash of each file. Ranks share the work and all get the result. All ranks call this."""

    def hashed(mine: list[str]) -> list[str]:
        return [file_hash(folder / name) for name in mine]

    return dict(zip(names, shared_by_ranks(names, hashed), strict=True))


def fingerprint(settings: dict, model: Path | None) -> dict:
    """Everything that a run's or an evaluation's results depend on. All ranks call this.

    settings: flags, data set hashes, and other settings.
    model: the folder of the model. Its weights, config and tokenizer are hashed.
    """
    if model is None:
        return settings
    names = sorted(path.name for path in model.iterdir() if path.suffix in MODEL_FILES)
    hashes = file_hashes(model, names)
    return settings | {f"{name} of the model": hashes[name] for name in names}


def read_run(folder: Path) -> dict | None:
    """The content of run.json; None if there is no such file. Raises UserError if it is damaged."""
    path = folder / RUN_FILE
    if not path.exists():
        return None
    return read_json(path, id=str, fingerprint=dict)


def claim(folder: Path, now: dict, names: tuple[str, ...]) -> str:
    """The id in the run.json of `folder`. Writes run.json if it does not exist.

    now: the run's fingerprint.
    names: patterns of the files that the run will write.
    Raises UserError if the folder belongs to another run, or holds such files but no run.json.
    """
    known = read_run(folder)
    if known is None:
        found = sorted(path.name for pattern in names for path in folder.glob(pattern))
        if found:
            raise UserError(
                f"{folder} holds {', '.join(found)} from another program (no {RUN_FILE}): "
                "choose another --output-dir"
            )
        known = {"id": uuid.uuid4().hex[:12], "fingerprint": now}
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RUN_FILE, known)

    before = known["fingerprint"]
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
    return known["id"]


# ---- replacing and deleting ----------------------------------------------------------------------


def scratch(folder: Path, run_id: str) -> Path:
    """The folder for the run's unfinished files. All files in it belong to the run."""
    return folder / f"writing-{run_id}"


def mark_file(folder: Path, run_id: str) -> Path:
    """The file that marks `folder` as written by the run; a renamed folder loses its mark."""
    return folder / f"{folder.name}-of-{run_id}.json"


def mark(folder: Path, run_id: str, files: dict[str, str | None]) -> None:
    """Record that run `run_id` wrote these files in `folder`, with their hashes or None."""
    write_json(mark_file(folder, run_id), {"files": files})


def written(folder: Path, run_id: str) -> dict[str, str | None]:
    """File -> hash, for the files that the run wrote in `folder`; {} if its mark is damaged."""
    try:
        return read_json(mark_file(folder, run_id), files=dict)["files"]
    except (FileNotFoundError, UserError):
        return {}


def delete_own(folder: Path, run_id: str) -> None:
    """Delete the files that the run wrote in a folder, and the folder if it is then empty."""
    for name in written(folder, run_id):
        (folder / name).unlink(missing_ok=True)
    mark_file(folder, run_id).unlink()  # last: after a kill, the remaining files are still marked
    if not any(folder.iterdir()):
        folder.rmdir()


def put_in_place(aside: Path, final: Path, run_id: str) -> None:
    """Move a marked folder out of scratch to its final place, in one rename.

    The run's earlier files there are deleted. If the old folder holds any other file, it is renamed
    and kept whole.
    """
    if final.exists():
        own = {*written(final, run_id), mark_file(final, run_id).name}
        if all(path.name in own for path in final.iterdir()):
            os.rename(final, aside.with_name(f"{final.name}-before"))
        else:
            number = 1
            while (kept := final.with_name(f"{final.name}-kept-{number}")).exists():
                number += 1
            os.rename(final, kept)
            print(f"{final} holds files that this run did not write: it is kept as {kept}")
    os.rename(aside, final)
    shutil.rmtree(aside.parent)
