"""Without this file a run's metrics could not go to a tracker, such as wandb.

It is imported only with --track.
"""

import atexit
import os
from dataclasses import asdict
from pathlib import Path

from infra.errors import UserError
from infra.flags import module_of


def tracker_of(text: str):
    """The module --track, whose functions init, log and finish are called as wandb's are.

    Raises UserError if it is not installed, or lacks one of them.
    """
    tracker = module_of("track", text)
    for name in ("init", "log", "finish"):
        if not callable(getattr(tracker, name, None)):
            raise UserError(
                f"--track {text} has no function {name}: a tracker has init, log and finish; "
                "docs/metrics.md has one for TensorBoard"
            )
    return tracker


def started_tracker(cfg, folder: Path) -> object:
    """The module --track, after its `init`, which is called as wandb's is."""
    tracker = tracker_of(cfg.track)
    begun = (folder / "lock").stat().st_mtime  # tells runs of the same name apart
    name = f"{folder.name}-{begun:.0f}"
    os.environ.setdefault("WANDB_RUN_ID", name)  # trackio resumes a run by its name, wandb by this
    tracker.init(project=cfg.project, name=name, config=asdict(cfg), resume="allow")
    atexit.register(tracker.finish)
    return tracker
