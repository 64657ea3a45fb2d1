"""Live metrics: --track also sends each line of metrics.jsonl to trackio, wandb or TensorBoard.

The tracker's package is imported only with --track. A resumed run continues its curves.
"""

import atexit
import importlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType

from infra.errors import UserError, first_line

MODULES = {  # tracker -> module to import
    "trackio": "trackio",
    "wandb": "wandb",
    "tensorboard": "torch.utils.tensorboard",
}


def tracking_module(tracker: str) -> ModuleType | None:
    """The tracker's module, None for `none`. Raises UserError if it is not installed."""
    if tracker == "none":
        return None
    try:
        return importlib.import_module(MODULES[tracker])
    except ImportError as error:
        raise UserError(
            f"--track {tracker} needs a package that is not installed "
            f"({first_line(error)}): pip install {tracker}"
        ) from error


def start_tracking(cfg, run_id: str, step: int) -> Callable[[dict], None] | None:
    """A function that sends a line of metrics to the --track tracker; None for `none`.

    step: the step after which the run resumes. Raises UserError like `tracking_module`.
    """
    module = tracking_module(cfg.track)
    if module is None:
        return None
    folder = Path(cfg.output_dir)
    name = f"{folder.name}-{run_id}"
    if cfg.track == "tensorboard":
        writer = module.SummaryWriter(str(folder), purge_step=step + 1)
        return partial(add_scalars, writer)

    known_by = {"id": run_id} if cfg.track == "wandb" else {}  # trackio identifies a run by name
    module.init(project="delta", name=name, config=asdict(cfg), resume="allow", **known_by)
    atexit.register(module.finish)
    return partial(log_to, module)


def log_to(module: ModuleType, metrics: dict) -> None:
    """Log to trackio or wandb; their `log` functions take the same arguments."""
    values = {name: value for name, value in metrics.items() if name != "step"}
    module.log(values, step=metrics["step"])


def add_scalars(writer, metrics: dict) -> None:
    """Log to TensorBoard: a curve for each metric."""
    for name, value in metrics.items():
        if name != "step":
            writer.add_scalar(name, value, metrics["step"])
    writer.flush()
