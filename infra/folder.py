"""The folder of a run or an evaluation: its owner, and files that survive a kill.

config.json holds the flags of the run that owns the folder. Files are replaced in one rename, or
appended line by line.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

from infra.errors import Stop, UserError, first_line

LOCKS: dict[Path, FileLock] = {}  # folders locked until this process ends


def claim(folder: Path, flags: dict, written: tuple[str, ...]) -> None:
    """Create `folder`, and lock it until this process ends.

    flags: those that a run in this folder must not change.
    written: patterns of the files that the run will write.
    Raises UserError, and leaves the folder as it is, if it belongs to a run with other flags, holds
    such files but no config.json, is being written by another process, or cannot be written.
    """
    wrong = [path.name for pattern in written for path in folder.glob(pattern)]
    if (folder / "config.json").exists():
        before = read_json(folder / "config.json")
        pairs = {name: (before.get(name), value) for name, value in flags.items()}
        wrong = [f"{key} {old}, not {new}" for key, (old, new) in pairs.items() if old != new]
    if wrong:
        raise UserError(
            f"--output-dir {folder} holds another run or other files ({'; '.join(wrong[:3])}): "
            "choose another"
        )
    lock = LOCKS.setdefault(folder.resolve(), FileLock(folder / "lock"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout as error:
        raise UserError(f"--output-dir {folder} is being written by another process") from error
    except OSError as error:
        raise UserError(f"--output-dir {folder} cannot be written ({error.strerror})") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write `path`, such as a full disk, into one line. Raises Stop."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError, CheckpointException) as error:
        reason = str(error).strip().splitlines()[-1]
        message = f"{path} could not be written ({reason}): free some disk space, then rerun"
        raise Stop(message, 1) from error


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file: readers find the old or the new one. Raises Stop."""
    aside = path.with_name(f".{path.name}")
    with writing(path):
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)


def write_lines(path: Path, lines: list[dict]) -> None:
    """Replace the content of a .jsonl file with these lines. Raises Stop."""
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def append_line(path: Path, line: dict) -> None:
    """Append `line` to a .jsonl file. Raises Stop."""
    with writing(path), open(path, "a") as file:
        file.write(json.dumps(line) + "\n")


def read_json(path: Path) -> dict:
    """The dictionary in a .json file. Raises UserError."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)})") from error


def read_lines(path: Path) -> list[dict]:
    """The lines of a .jsonl file, without one that a kill cut off; [] if there is no file."""
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    except ValueError as error:
        raise UserError(f"{path} cannot be read ({first_line(error)})") from error
