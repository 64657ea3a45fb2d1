"""A run of train.py: its state, its folder and checkpoints, and stopping it on a signal.

`checkpoint-STEP/` holds every rank's shards of the weights and Adam moments, and the RunState. It
is written as `unfinished/` and renamed when complete.
"""

import atexit
import importlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from infra.errors import Interrupted, Stop, UserError
from infra.flags import of_other_methods
from infra.folder import claim, read_json, read_lines, write_lines, write_text, writing
from infra.problems import encode_prompts, refuse_length
from infra.ranks import (
    end_ranks,
    on_first_rank,
    rank_and_world,
    speaks,
    start_ranks,
    sum_over_ranks,
    this_device,
)

SIGNALS = (signal.SIGTERM, signal.SIGINT)  # these stop a run at the next safe point
UNFINISHED = "unfinished"  # what is being written or deleted
WRITTEN = ("metrics.jsonl", "samples.jsonl", "model", "best", "checkpoint-*", UNFINISHED)


@dataclass
class RunState:
    """The state of a run, except its weights and moments."""

    step: int = 0  # rollout batches completed
    position: int = 0  # prompts drawn from the stream of problems
    streak: int = 0  # consecutive updates skipped because the gradient was not finite
    best: float = -1.0  # best evaluation accuracy
    unlogged: dict = field(default_factory=dict)  # metrics of an unfinished step
    memory: dict = field(default_factory=dict)  # method state across steps


def start(cfg) -> None:
    """Start the ranks. Raises UserError if --engine or --track is not installed here."""
    if cfg.engine == "vllm":
        from infra.vllm_engine import refuse_machine

        refuse_machine()
    import_tracker(cfg.track)
    start_ranks()


class Run:
    """A run: its policy, optimiser, problems and folder."""

    def __init__(self, cfg, method, policy, tokenizer, optimizer, problems, held_out):
        """Encode the prompts, claim --output-dir and load its newest checkpoint.

        cfg: a train.Config. method: a methods.Method. policy: a policy.Policy. problems, held_out:
        for training and for evaluation. All ranks call this, after `start`. Raises UserError.
        """
        self.cfg = cfg
        self.method = method
        self.policy = policy
        self.tokenizer = tokenizer
        self.optimizer = optimizer
        self.rank, self.world = rank_and_world()
        self.told_to_stop = None  # the signal, once there is one
        self.seconds = []  # per step, since the program started

        encoding = (tokenizer, cfg.max_prompt_tokens, cfg.prompt_template)
        self.problems, self.prompts = encode_prompts(problems, *encoding)  # token ids, a list each
        self.held_out, self.held_out_prompts = encode_prompts(held_out, *encoding)
        every = self.prompts + self.held_out_prompts
        refuse_length(policy.lm.config, every, cfg.max_new_tokens)
        self.engine = None  # replaces `generate`
        if cfg.engine == "vllm":
            from infra.vllm_engine import VLLMEngine  # here, because vllm is optional

            longest = max(map(len, every)) + cfg.max_new_tokens
            self.engine = VLLMEngine(policy.lm.name_or_path, policy, longest, cfg.in_flight)

        self.folder = Path(cfg.output_dir)  # files are written only from here on
        on_first_rank(claim, self.folder, defining_flags(type(cfg), asdict(cfg)), WRITTEN)
        self.state = restore(self.folder, policy, optimizer)  # saved in checkpoints
        if self.state.step > cfg.steps:
            raise UserError(f"{self.folder} is already at step {self.state.step}: raise --steps")
        on_first_rank(begin_writing, cfg, self.state)

        self.tracker = import_tracker(cfg.track)  # also receives each line of metrics
        if self.tracker and self.rank == 0:
            name = cfg.output_dir.replace("/", "-")
            os.environ.setdefault("WANDB_RUN_ID", name)  # trackio knows a run by its name
            self.tracker.init(project="delta", name=name, config=asdict(cfg), resume="allow")
            atexit.register(self.tracker.finish)

    def stop(self, number: int, _) -> None:
        """Handle SIGTERM and Ctrl-C: the run stops at the next safe point.

        A second Ctrl-C stops it at once. A second SIGTERM does not: torchrun and a scheduler may
        both send one.
        """
        self.told_to_stop = signal.Signals(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if speaks():  # print() is not allowed inside a signal handler
            os.write(2, b"\nstopping at the next safe point; Ctrl-C stops without a checkpoint\n")

    def stopping(self) -> bool:
        """Whether this rank received a signal to stop."""
        return self.told_to_stop is not None

    def look_for_signals(self) -> None:
        """Raise Interrupted on every rank if any rank received a signal to stop."""
        told = torch.tensor(float(self.stopping()), device=this_device())
        if sum_over_ranks(told) > 0:
            raise Interrupted

    def sampler(self) -> AbstractContextManager:
        """The model or engine for `rollout`, with the current weights. All ranks enter together."""
        return self.engine.holding() if self.engine else self.policy.plain()

    def save(self) -> None:
        """Write a checkpoint, but not before the first update or after a skipped one.

        There are no moments yet, or the run may be diverging. All ranks call this.
        """
        if self.optimizer.state and self.state.streak == 0:
            save(self.folder, self.policy, self.optimizer, self.state)


def import_tracker(name: str) -> ModuleType | None:
    """A module with the functions of wandb: init, log and finish. Raises UserError."""
    try:
        return importlib.import_module(name) if name else None
    except ImportError as error:
        raise UserError(f"--track {name}: {error}: pip install {name}") from error


@contextmanager
def running(run: Run) -> Iterator[None]:
    """Stop the run on a signal. All ranks enter together.

    At the next safe point, where weights and state belong to the same step, the block raises
    Interrupted. The run is then saved, and Stop is raised.
    """
    before = {number: signal.signal(number, run.stop) for number in SIGNALS}
    try:
        yield
    except Interrupted:
        run.save()
        end_ranks()
        number = run.told_to_stop or signal.SIGTERM  # else another rank received it
        after = f"after step {run.state.step}: rerun the command to resume"
        raise Stop(f"stopped by {number.name} {after}", 128 + number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- its folder ----------------------------------------------------------------------------------


def defining_flags(config_class: type, config: dict) -> dict:
    """The flags that a run's results depend on, of all those in its config.json."""
    left_out = [each.name for each in fields(config_class) if each.metadata.get("free")]
    left_out += of_other_methods(config_class, config["method"])
    return {name: value for name, value in config.items() if name not in left_out}


def begin_writing(cfg, state: RunState) -> None:
    """Write config.json, and delete what was written after the checkpoint to resume from.

    Raises UserError if the folder's checkpoints are lost.
    """
    folder = Path(cfg.output_dir)
    logged = state.step - 1 if state.unlogged else state.step
    metrics, samples = read_lines(folder / "metrics.jsonl"), read_lines(folder / "samples.jsonl")
    if state.step == 0 and metrics:
        before = read_json(folder / "config.json")
        if (folder / "model").exists() or metrics[-1]["step"] > before["save_every"]:
            raise UserError(f"{folder} has lost its checkpoints: choose another --output-dir")
        metrics = samples = []
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    write_text(folder / "config.json", json.dumps(asdict(cfg), indent=1) + "\n")
    write_lines(folder / "metrics.jsonl", [line for line in metrics if line["step"] <= logged])
    write_lines(folder / "samples.jsonl", [line for line in samples if line["step"] <= state.step])


# ---- checkpoints ---------------------------------------------------------------------------------


def content(policy, optimizer, state: RunState) -> dict:
    """What a checkpoint holds: this rank's shards, the state and torch's random state."""
    weights, moments = get_state_dict(policy, optimizer)
    random = torch.get_rng_state()
    return {"weights": weights, "moments": moments, "state": state, "random": random}


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, ordered by step."""
    return sorted(folder.glob("checkpoint-" + 6 * "[0-9]"))


def save(folder: Path, policy, optimizer, state: RunState) -> None:
    """Write checkpoint-STEP/, delete all but the newest two. All ranks call this. Raises Stop."""
    final = folder / f"checkpoint-{state.step:06d}"
    if on_first_rank(final.exists):
        return
    with writing(final):  # flushed to the disk; returns when all ranks have written their files
        dcp.save(content(policy, optimizer, state), checkpoint_id=folder / UNFINISHED)
    on_first_rank(put_in_place, folder, final)


def put_in_place(folder: Path, final: Path) -> None:
    """Rename a complete checkpoint, and delete all but the newest two."""
    with writing(final):
        os.rename(folder / UNFINISHED, final)
        for old in checkpoints(folder)[:-2]:
            os.rename(old, folder / UNFINISHED)  # so that a kill leaves no part of a checkpoint
            shutil.rmtree(folder / UNFINISHED)


def restore(folder: Path, policy, optimizer) -> RunState:
    """Load the newest checkpoint, on any number of ranks; a new RunState if there is none.

    Raises UserError if it cannot be read.
    """
    paths = on_first_rank(checkpoints, folder)
    if not paths:
        return RunState()
    read = content(policy, optimizer, RunState())
    try:
        dcp.load(read, checkpoint_id=paths[-1])
    except (Exception, CheckpointException) as error:  # damaged files raise many classes
        reason = type(error).__name__
        raise UserError(f"{paths[-1]} cannot be read ({reason}): delete this folder") from error
    weights, moments, state, random = read.values()
    set_state_dict(policy, optimizer, model_state_dict=weights, optim_state_dict=moments)
    torch.set_rng_state(random)
    if speaks():
        print(f"continuing {folder} after step {state.step}")
    return state


def export(folder: Path, policy, tokenizer) -> None:
    """Write the model as a Hugging Face folder in the compute dtype, bfloat16 on GPUs.

    Replaces the files of an earlier model one by one. All ranks call this. Raises Stop.
    """
    aside = folder.parent / UNFINISHED
    with policy.plain() as lm:
        if dist.get_rank() > 0:
            return
        with writing(folder):
            lm.save_pretrained(aside)
            tokenizer.save_pretrained(aside)
            folder.mkdir(exist_ok=True)
            for path in aside.iterdir():
                os.replace(path, folder / path.name)
            aside.rmdir()
