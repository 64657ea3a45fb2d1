"""What a run needs of the disk, and whether it is there: asked before the first step."""

import math
import shutil
from pathlib import Path

from infra.errors import UserError

GB = 1e9


def checkpoint_bytes(parameters: int) -> int:
    """Weights and Adam's two moments in float32: 98 GB for 8.19 billion parameters."""
    return 12 * parameters


def run_bytes(parameters: int, c: int, cfg) -> int:
    """An upper bound of what the run described by cfg (train.Config) has on disk at once, bytes.

    The newest two checkpoints stay, and a third is written before the oldest goes. Beside them
    stand two exports, in numbers of c bytes: model/ and best/, or one of them twice.
    """
    checkpoints = min(3, math.ceil(cfg.steps / cfg.save_every))
    return checkpoints * checkpoint_bytes(parameters) + 2 * c * parameters


def check_disk(folder: Path, needed: int) -> None:
    """Raise UserError where the run in `folder` cannot grow to `needed` bytes.

    The checkpoints and models that it holds count as free: they are part of what is needed.
    """
    files = [*folder.glob("checkpoint-*/*"), *folder.glob("model/*"), *folder.glob("best/*")]
    held = sum(file.stat().st_size for file in files if file.is_file())
    free = shutil.disk_usage(folder).free + held
    if free < needed:
        raise UserError(
            f"--output-dir {folder}: checkpoints and models take up to {needed / GB:.1f} GB, and "
            f"only {free / GB:.1f} GB are free there: make room, or choose another"
        )
