"""What a run needs of the disk, and whether it is there: asked before the first step.

A checkpoint holds weights and Adam's two moments in float32. The newest two stay, and a third is
written before the oldest of them goes; beside them stand model/ and best/ in the dtype of the
computation, each written anew before the old one goes.
"""

import math
import shutil
from pathlib import Path

from infra.errors import UserError

GB = 1e9


def checkpoint_bytes(parameters: int) -> int:
    """Bytes of a checkpoint of so many parameters: 98 GB for 8.19 billion."""
    return 12 * parameters


def run_bytes(parameters: int, c: int, cfg) -> int:
    """The most bytes that the run described by cfg (train.Config) has on disk at once.

    c: bytes of a number in an export.
    """
    saves = math.ceil(cfg.steps / cfg.save_every)
    best = 1 if cfg.eval_data else 0
    an_export = c * parameters
    while_saving = min(3, saves) * checkpoint_bytes(parameters) + best * an_export
    while_exporting = min(2, saves) * checkpoint_bytes(parameters) + (best + 1) * an_export
    return max(while_saving, while_exporting)


def check_disk(folder: Path, needed: int) -> None:
    """Raise UserError where the run in `folder` cannot grow to `needed` bytes.

    What it holds already counts as free: it is part of what is needed.
    """
    held = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    free = shutil.disk_usage(folder).free + held
    if free < needed:
        raise UserError(
            f"--output-dir {folder}: checkpoints and models take up to {needed / GB:.1f} GB, and "
            f"only {free / GB:.1f} GB are free there: make room, or choose another"
        )
