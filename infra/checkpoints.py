"""What a run leaves on disk to be continued or used: its folder, its checkpoints, its models.

A checkpoint is a folder `checkpoint-STEP/`: every rank's shards of weights and Adam moments,
`state.pt`, and `checksums.json`. It is written under another name and renamed, so that a folder of
that name was whole once; the checksums tell whether it still is.
"""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from infra.errors import Stop, UserError
from infra.files import read_json, read_lines, write_aside, write_lines
from infra.identity import MODELS, check_export, differences, identify_run, mark
from infra.policy import Policy
from infra.ranks import on_first_rank, rank_and_world

CHECKSUMS = "checksums.json"

# Flags in which a continued run may differ from its beginning.
MAY_CHANGE = {
    "steps",
    "eval_every",
    "save_every",
    "output_dir",
    "resume",
    "rollout_rows",
    "micro_batch_tokens",
    "recompute",
    "packing",
    "compile",
    "proxy_budget_gb",
    "code_sandbox",
}


@dataclass
class RunState:
    """Where a run stands, beside its weights and moments."""

    step: int = 0  # rollout batches so far
    position: int = 0  # prompts drawn from the stream of problems
    streak: int = 0  # updates skipped in a row, their gradients not finite
    best: float = -1.0  # best evaluation accuracy
    unlogged: dict = field(default_factory=dict)  # metrics of a step that was not finished
    memory: dict = field(default_factory=dict)  # what the method keeps over steps


# ---- the folder of a run -------------------------------------------------------------------------


def open_run(cfg, data: dict[str, str]) -> str:
    """Check that the run in --output-dir, if there is one, is the one described; returns its id.

    data: the hashes of its problems, by set. Raises UserError where the folder holds another run,
    something else, or a model in the place of an export.
    """
    folder = Path(cfg.output_dir)
    metrics = folder / "metrics.jsonl"
    if (folder / "config.json").exists():
        check_same_run(cfg, folder)
    elif metrics.exists() and metrics.stat().st_size:
        raise UserError(
            f"--output-dir {folder} holds metrics of something else (no config.json): "
            "choose another"
        )
    run_id = identify_run(folder, data)

    for cut_off in folder.glob("checkpoint-*.tmp"):
        print(f"skipping {cut_off}: it was cut off while being written")
        shutil.rmtree(cut_off)
    for name in MODELS:
        remove(*asides(folder / name))
    return run_id


def check_same_run(cfg, folder: Path) -> None:
    """Raise UserError where the run in `folder` may not be continued by cfg."""
    if cfg.resume == "never":
        raise UserError(
            f"--output-dir {folder} already holds a run: "
            "choose another, or --resume auto to continue it"
        )
    known = read_json(folder / "config.json")
    before = {}
    now = {}
    for name, value in asdict(cfg).items():
        if name not in MAY_CHANGE:
            now[name] = value
            before[name] = known.get(name, getattr(type(cfg), name))  # newer than the run: default
    changed = differences(before, now)
    if changed:
        raise UserError(
            f"--output-dir {folder} holds a run with other settings ({'; '.join(changed)}): "
            "choose another"
        )


def begin_writing(cfg, state: RunState) -> None:
    """Write config.json, and drop the lines after the checkpoint: they will be made again.

    Raises UserError where a line is damaged.
    """
    folder = Path(cfg.output_dir)
    logged = state.step - 1 if state.unlogged else state.step
    kept = {"metrics.jsonl": [], "samples.jsonl": []}
    if state.step > 0:
        for name, last in (("metrics.jsonl", logged), ("samples.jsonl", state.step)):
            rows = read_lines(folder / name, step=int)
            kept[name] = [row for row in rows if row["step"] <= last]

    write_aside(folder / "config.json", json.dumps(asdict(cfg), indent=1) + "\n")
    for name, rows in kept.items():
        write_lines(folder / name, rows)


# ---- checkpoints ---------------------------------------------------------------------------------


def save(folder: Path, policy: Policy, optimizer, state: RunState) -> None:
    """Write checkpoint-STEP/; the newest two stay. All ranks call it.

    Raises Stop where it cannot be written; the earlier checkpoints are then untouched.
    """
    final = folder / f"checkpoint-{state.step:06d}"
    if final.exists():
        return
    aside = final.with_suffix(".tmp")
    try:
        # Of an optimiser that has made no step there is no state yet: asking would invent one.
        stepped = len(optimizer.state) > 0
        dcp.save(contents(policy, optimizer, stepped), checkpoint_id=aside)
        if dist.get_rank() == 0:
            extra = {"random": torch.get_rng_state(), "stepped": stepped}
            torch.save(asdict(state) | extra, aside / "state.pt")
        dist.barrier()  # the files of all ranks are there
        sums = checksums(aside)
        if dist.get_rank() == 0:
            write_aside(aside / CHECKSUMS, json.dumps(sums, indent=1) + "\n")
            os.replace(aside, final)
            for old in sorted(folder.glob("checkpoint-*[0-9]"))[:-2]:
                shutil.rmtree(old)
    except (dcp.api.CheckpointException, OSError, RuntimeError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise Stop(
            f"{aside} could not be written ({str(error).splitlines()[-1]}); earlier checkpoints "
            "are untouched: make room, then run the same command to continue",
            1,
        ) from error
    dist.barrier()


def checksums(path: Path) -> dict[str, str]:
    """The hash of each file of a checkpoint; ranks share the files, and all get all hashes."""
    rank, world = rank_and_world()
    names = sorted(each.name for each in path.iterdir() if each.name != CHECKSUMS)
    mine = {}
    for name in names[rank::world]:
        with open(path / name, "rb") as file:
            mine[name] = hashlib.file_digest(file, "blake2b").hexdigest()[:32]

    parts = [mine]
    if world > 1:
        parts = [None] * world
        dist.all_gather_object(parts, mine)
    return {name: value for part in parts for name, value in part.items()}


def damage(path: Path) -> str:
    """What is wrong with a checkpoint; empty if nothing is. All ranks call it."""
    if not (path / CHECKSUMS).exists():
        return f"it has no {CHECKSUMS}"
    try:
        wanted = read_json(path / CHECKSUMS)
    except UserError as error:
        return str(error)
    found = checksums(path)
    names = sorted(wanted.keys() | found.keys())
    changed = [name for name in names if found.get(name) != wanted.get(name)]
    return f"{', '.join(changed)} changed since it was written" if changed else ""


def contents(policy: Policy, optimizer, stepped: bool) -> dict:
    """What a checkpoint holds of each rank: its shards of the weights and of the moments."""
    if not stepped:
        return {"weights": get_model_state_dict(policy)}
    weights, moments = get_state_dict(policy, optimizer)
    return {"weights": weights, "optimizer": moments}


def put_back(policy: Policy, optimizer, read: dict) -> None:
    """The reverse of `contents`."""
    if "optimizer" not in read:
        set_model_state_dict(policy, read["weights"])
        return
    set_state_dict(
        policy, optimizer, model_state_dict=read["weights"], optim_state_dict=read["optimizer"]
    )


def restore(cfg, policy: Policy, optimizer) -> RunState:
    """Put back what `save` wrote last, on any number of ranks; a fresh RunState without one.

    A damaged checkpoint is passed over with a message, and removed once an earlier one is found
    to be whole. Raises UserError when all are damaged or the run is already past --steps.
    """
    folder = Path(cfg.output_dir)
    rank, _ = rank_and_world()
    paths = sorted(folder.glob("checkpoint-*[0-9]"), reverse=True)
    damaged = []
    for path in paths:
        wrong = damage(path)
        if wrong:
            damaged.append(path)
            if rank == 0:
                print(f"skipping {path}: it is damaged ({wrong})")
            continue

        saved = torch.load(path / "state.pt", weights_only=True)
        if saved["step"] > cfg.steps:
            raise UserError(
                f"{folder} is already at step {saved['step']}: "
                "raise --steps, or choose another --output-dir"
            )
        read = contents(policy, optimizer, saved.pop("stepped"))
        dcp.load(read, checkpoint_id=path)
        put_back(policy, optimizer, read)
        torch.set_rng_state(saved.pop("random"))
        if rank == 0:
            for each in damaged:
                shutil.rmtree(each)
            print(f"continuing {folder} after step {saved['step']}")
        return RunState(**saved)

    if paths:
        raise UserError(
            f"every checkpoint in {folder} is damaged: "
            "delete it to start anew, or choose another --output-dir"
        )
    return RunState()


# ---- the model for others ------------------------------------------------------------------------


def export(folder: Path, policy: Policy, tokenizer, run_id: str) -> None:
    """A Hugging Face folder in the dtype of the computation, bfloat16 on GPUs.

    Written aside; the model before it is moved away whole, mark and all, and deleted once the new
    one is in its place: a kill at any moment leaves what the same run may replace. It replaces only
    what run `run_id` wrote itself, as the first rank knows it. All ranks call it. Raises UserError
    where something else stands in the way.
    """
    on_first_rank(check_export, folder, run_id)
    aside, old = asides(folder)
    with policy.plain() as lm:
        if dist.get_rank() > 0:
            return
        remove(aside, old)
        lm.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
    mark(aside, run_id)
    if folder.exists():
        os.rename(folder, old)
    os.rename(aside, folder)
    remove(old)


def asides(folder: Path) -> tuple[Path, Path]:
    """Where the next model for `folder` is written, and where the one before it waits to go."""
    return folder.with_name(folder.name + ".tmp"), folder.with_name(folder.name + ".old")


def remove(*folders: Path) -> None:
    """Delete what a kill may have left there."""
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)
