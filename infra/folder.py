"""Without this file two processes could write one run, and a kill could leave half a file.

The folder of a run, an evaluation or a study has an owner, whose `identity_of` stands in
config.json. Files are replaced in one rename, or appended line by line. A file or folder that a
kill left incomplete has UNFINISHED in its name.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from hashlib import sha256
from itertools import count
from pathlib import Path

from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

from infra.errors import Stop, UserError, first_line

SMALL_FILES = (".json", ".jinja", ".model", ".txt")  # config, tokenizer and chat template
SAMPLES = 256  # of a file of weights
UNFINISHED = "being-written"


# ---- the owner -----------------------------------------------------------------------------------


def identity_of(command: str, flags: dict, model: Path, **seen: list) -> dict:
    """What a command's results depend on: its name, its flags, and hashes of what it reads.

    model: its folder. seen: what the model is given; prompts=[token ids, ...] gives prompts_hash.
    """
    hashes = {f"{name}_hash": hash_of(content) for name, content in seen.items()}
    return {"command": command, **flags, "model_files": hash_of([], model), **hashes}


def claim(folder: Path, identity: dict, written: tuple[str, ...], flags=None) -> None:
    """Create `folder`, and lock it until this process ends.

    identity: the part of config.json, which the caller writes, that must stay the same. written:
    patterns of the files that will be written. flags: the dataclass of the flags; a flag that an
    older config.json lacks had its default. Raises UserError, and leaves the folder as it is, if
    it has another identity, holds such files but no config.json, is in use, or cannot be written.
    """
    others = [path.name for pattern in written for path in folder.glob(pattern)]
    if (folder / "config.json").exists():
        defaults = {option.name: option.default for option in fields(flags)} if flags else {}
        known = defaults | read_json(folder / "config.json")
        names = [name for name in identity if known.get(name) != identity[name]]
        content = [name for name in names if name.endswith(("_hash", "_files"))]
        others = [f"other {name.removesuffix('_hash').replace('_', ' ')}" for name in content]
        if names != content:  # then flags differ, which often explain the rest
            changed = [name for name in names if name not in content]
            others = [f"{name} {known.get(name)}, not {identity[name]}" for name in changed]
    if others:
        new = next(f"{folder}-{n}" for n in count(2) if not Path(f"{folder}-{n}").exists())
        raise UserError(
            f"--output-dir {folder} holds another run or other files "
            f"({'; '.join(others[:3])}): choose another, such as {new}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock(folder)
    except OSError as error:  # such as a read-only folder of models, where evaluate.py would write
        raise UserError(f"--output-dir {folder} cannot be written ({error.strerror})") from error


def lock(folder: Path) -> None:
    """Lock `folder` until this process ends. Raises UserError if another one holds the lock."""
    import fcntl  # only Linux and macOS have it; minimal.py locks nothing

    flags = os.O_RDWR | os.O_CREAT  # these keep a file's content, and do not wait for a FIFO
    file = os.open(folder / "lock", flags, mode=0o644)  # stays open: closing it would unlock
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(f"--output-dir {folder} is being written by another process") from error
    except OSError as error:  # some network file systems have no locks
        print(f"{folder} cannot be locked ({error.strerror}): start no second run in it")


def hash_of(content: list | dict, model: Path | None = None) -> str:
    """A hash of what results depend on: 16 hex digits.

    content: problems or prompts in their order, lists of them, or an identity.
    model: a Hugging Face folder. The hash reads its config, tokenizer and chat template, and of its
    weights the names, the sizes, the headers and samples, which a step of training changes. It
    reads no time, so a copy of the folder is the same model.
    """
    digest = sha256(json.dumps(content, sort_keys=True, default=str).encode())
    for path in sorted(model.iterdir()) if model else ():
        if path.suffix in SMALL_FILES:
            digest.update(path.name.encode() + path.read_bytes())
        if path.suffix == ".safetensors":
            size = path.stat().st_size
            digest.update(f"{path.name} {size}".encode())
            with open(path, "rb") as file:
                digest.update(file.read(2**20))  # the header, and the first weights
                for start in range(0, size, 1 + size // SAMPLES):
                    file.seek(start)
                    digest.update(file.read(4096))
    return digest.hexdigest()[:16]


# ---- files ---------------------------------------------------------------------------------------


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write `path`, such as a full disk, into one line. Raises Stop."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError, CheckpointException) as error:
        if isinstance(error, CheckpointException):
            error, _ = next(iter(error.failures.values()))  # the first rank's
        if isinstance(error.__context__, OSError):  # the cause of torch's error
            error = error.__context__
        remedy = "make room or allow writing there, then rerun the command"
        raise Stop(f"{path} could not be written ({first_line(error)}): {remedy}", 1) from error


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file: readers find the old or the new one. Raises Stop."""
    aside = path.with_name(f"{path.name}.{UNFINISHED}")
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # else a power failure may leave an empty config.json
        os.replace(aside, path)


def write_json(path: Path, content: dict) -> None:
    """Replace the content of a .json file. Raises Stop."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_lines(path: Path, lines: list[dict]) -> None:
    """Replace the content of a .jsonl file with these lines. Raises Stop."""
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def append_line(path: Path, line: dict) -> None:
    """Append `line` to a .jsonl file. Raises Stop."""
    with writing(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_json(path: Path) -> dict:
    """The dictionary in a .json file. Raises UserError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)})") from error


def read_lines(path: Path) -> list[dict]:
    """The lines of a .jsonl file, without one that a kill cut off; [] if there is no file.

    Raises UserError.
    """
    if not path.exists():
        return []
    *whole, _ = path.read_bytes().split(b"\n")  # the last is empty, or was cut off
    lines = []
    for number, line in enumerate(whole, start=1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number} is damaged: delete this line") from error
    return lines
