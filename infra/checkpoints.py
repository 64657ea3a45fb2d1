"""A run's checkpoints and exported models.

A checkpoint is a folder `checkpoint-STEP/`: every rank's shards of weights and Adam moments,
`state.pt`, and the run's manifest of file hashes (infra/folder.py). It is written in the run's
scratch folder and renamed when complete. The hashes reveal later damage.
"""

import shutil
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from infra.errors import Stop, UserError
from infra.files import read_lines, write_json, write_lines, writing
from infra.flags import of_other_methods
from infra.folder import (
    MODELS,
    RUN_FILE,
    claim,
    data_hash,
    delete_own,
    file_hash,
    file_hashes,
    fingerprint,
    mark,
    mark_file,
    put_in_place,
    read_run,
    scratch,
    written,
)
from infra.policy import Policy
from infra.ranks import on_first_rank, rank_and_world
from infra.training_flags import MemoryFlags, RunFlags

# Files that a run writes; none of them may exist before it starts.
WRITTEN = ("config.json", "metrics.jsonl", "samples.jsonl", *MODELS)

# Files that define the methods.
METHOD_FILES = ("grpo.py", "delta.py", "methods.py", "ablations.py")

# Flags that may change when a run resumes.
MAY_CHANGE = {each.name for group in (RunFlags, MemoryFlags) for each in fields(group)}
MAY_CHANGE |= {"eval_every", "code_sandbox"}


@dataclass
class RunState:
    """The state of a run, except its weights and moments."""

    step: int = 0  # rollout batches completed
    position: int = 0  # prompts drawn from the stream of problems
    streak: int = 0  # consecutive updates skipped because the gradient was not finite
    best: float = -1.0  # best evaluation accuracy
    unlogged: dict = field(default_factory=dict)  # metrics of an unfinished step
    memory: dict = field(default_factory=dict)  # method state across steps


# ---- a run's folder ------------------------------------------------------------------------------


def claim_folder(cfg, model: Path, data: dict[str, list[dict]], optimizer) -> str:
    """Check that any run in --output-dir has the fingerprint of this one. Returns the run's id.

    cfg: a train.Config.
    model: the folder of the model that the run starts from.
    data: name of a data set -> its problems.
    All ranks call this. Raises UserError if the folder holds another run, or other files whose
    names this run would use.
    """
    left_out = MAY_CHANGE | set(of_other_methods(cfg, cfg.method))
    settings = {name: value for name, value in asdict(cfg).items() if name not in left_out}
    settings["optimiser"] = type(optimizer).__name__
    for name, problems in data.items():
        settings[f"{name} problems"] = data_hash(problems)
    now = fingerprint(settings, model)
    run_id = on_first_rank(claim, Path(cfg.output_dir), now, WRITTEN)
    on_first_rank(warn_of_changed_code, Path(cfg.output_dir))
    return run_id


def warn_of_changed_code(folder: Path) -> None:
    """Print which METHOD_FILES have changed since the run in `folder` began."""
    known = read_run(folder)
    now = {name: file_hash(Path(__file__).parent.parent / name) for name in METHOD_FILES}
    if "code" not in known:  # the run has just begun
        write_json(folder / RUN_FILE, known | {"code": now})
        return
    changed = [name for name in now if now[name] != known["code"].get(name)]
    if changed:
        print(
            f"warning: {', '.join(changed)} changed since the run in {folder} began, and its "
            "finished steps are not repeated: for results from the new code, choose another "
            "--output-dir"
        )


def begin_writing(cfg, run_id: str, state: RunState) -> None:
    """Write config.json, and delete everything written after the checkpoint to resume from.

    This deletes any unfinished checkpoint or model, and the metrics and samples of later steps. The
    run will write them again. Raises UserError if a line is malformed.
    """
    folder = Path(cfg.output_dir)
    logged = state.step - 1 if state.unlogged else state.step
    kept = {"metrics.jsonl": [], "samples.jsonl": []}
    if state.step > 0:
        for name, last in (("metrics.jsonl", logged), ("samples.jsonl", state.step)):
            rows = read_lines(folder / name, step=int)
            kept[name] = [row for row in rows if row["step"] <= last]

    unfinished = scratch(folder, run_id)
    if unfinished.exists():
        print(f"deleting {unfinished}: it is incomplete")
        shutil.rmtree(unfinished)
    write_json(folder / "config.json", asdict(cfg))
    for name, rows in kept.items():
        write_lines(folder / name, rows)


# ---- checkpoints ---------------------------------------------------------------------------------


def save(folder: Path, policy: Policy, optimizer, state: RunState) -> None:
    """Write checkpoint-STEP/ and delete all but the newest two. All ranks call this.

    If it cannot be written, raises Stop and leaves the earlier checkpoints untouched.
    """
    run_id = on_first_rank(read_run, folder)["id"]
    final = folder / f"checkpoint-{state.step:06d}"
    if on_first_rank(mark_file(final, run_id).exists):
        return  # already on disk
    aside = scratch(folder, run_id) / final.name
    try:
        dcp.save(shards(policy, optimizer), checkpoint_id=aside)
        if dist.get_rank() == 0:
            torch.save(asdict(state) | {"random": torch.get_rng_state()}, aside / "state.pt")
        dist.barrier()  # wait until every rank has written its files
        hashes = file_hashes(aside, sorted(path.name for path in aside.iterdir()))
        on_first_rank(finish_checkpoint, aside, final, run_id, hashes)
    except (dcp.api.CheckpointException, OSError, RuntimeError) as error:
        shutil.rmtree(aside.parent, ignore_errors=True)
        raise Stop(
            f"{final} could not be written ({str(error).splitlines()[-1]}); earlier checkpoints "
            "are untouched: free some disk space, then run the same command to resume",
            1,
        ) from error


def finish_checkpoint(aside: Path, final: Path, run_id: str, hashes: dict[str, str]) -> None:
    """Mark a checkpoint, move it into place, and delete all but the newest two."""
    mark(aside, run_id, hashes)
    put_in_place(aside, final, run_id)
    write_json(final.parent / RUN_FILE, read_run(final.parent) | {"saved": final.name})
    for old in own_checkpoints(final.parent, run_id)[:-2]:
        delete_own(old, run_id)


def own_checkpoints(folder: Path, run_id: str) -> list[Path]:
    """The run's checkpoints, ordered by step. A copy under another name does not count."""
    paths = [path for path in folder.glob("checkpoint-*") if mark_file(path, run_id).exists()]
    return sorted(paths, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def damage(path: Path, run_id: str) -> str:
    """How a checkpoint is damaged; empty if the checkpoint is intact. All ranks call this."""
    wanted = written(path, run_id)
    if "state.pt" not in wanted:
        return f"{mark_file(path, run_id).name} has changed since it was written"
    found = file_hashes(path, sorted(wanted))
    changed = [name for name in sorted(wanted) if found[name] != wanted[name]]
    return f"{', '.join(changed)} changed since it was written" if changed else ""


def shards(policy: Policy, optimizer) -> dict:
    """This rank's shards of the weights and moments."""
    weights, moments = get_state_dict(policy, optimizer)
    return {"weights": weights, "moments": moments}


def restore(cfg, policy: Policy, optimizer) -> RunState:
    """Load the newest checkpoint, on any number of ranks. If there is none, return a new RunState.

    A damaged checkpoint is skipped with a message, and deleted once an earlier one proves intact.
    Raises UserError if all checkpoints are damaged or deleted, or the run is already past --steps.
    """
    folder = Path(cfg.output_dir)
    rank, _ = rank_and_world()
    known = on_first_rank(read_run, folder)
    paths = on_first_rank(own_checkpoints, folder, known["id"])
    damaged = []
    for path in reversed(paths):
        wrong = damage(path, known["id"])
        if wrong:
            damaged.append(path)
            if rank == 0:
                print(f"skipping {path}: it is damaged ({wrong})")
            continue

        saved = torch.load(path / "state.pt", weights_only=True)
        if saved.keys() != {"random", *(each.name for each in fields(RunState))}:
            raise UserError(
                f"{path} is from another version of this code: finish the run with that version, "
                "or choose another --output-dir"
            )
        if saved["step"] > cfg.steps:
            raise UserError(
                f"{folder} is already at step {saved['step']}: "
                "raise --steps, or choose another --output-dir"
            )
        read = shards(policy, optimizer)
        dcp.load(read, checkpoint_id=path)
        weights, moments = read["weights"], read["moments"]
        set_state_dict(policy, optimizer, model_state_dict=weights, optim_state_dict=moments)
        torch.set_rng_state(saved.pop("random"))
        if rank == 0:
            for each in damaged:
                delete_own(each, known["id"])
            print(f"continuing {folder} after step {saved['step']}")
        return RunState(**saved)

    if paths:
        raise UserError(
            f"every checkpoint in {folder} is damaged: "
            "delete the folder to start again, or choose another --output-dir"
        )
    if "saved" in known:
        raise UserError(
            f"the checkpoints of the run in {folder} are missing (the last was {known['saved']}): "
            "put that one back to resume, or choose another --output-dir"
        )
    return RunState()


# ---- export --------------------------------------------------------------------------------------


def export(folder: Path, policy: Policy, tokenizer, run_id: str) -> None:
    """Write the model as a Hugging Face folder in the compute dtype, bfloat16 on GPUs.

    It is written to the scratch folder, then replaces the run's earlier model. All ranks call this.
    Raises Stop if it cannot be written.
    """
    aside = scratch(folder.parent, run_id) / folder.name
    with policy.plain() as lm:
        if dist.get_rank() > 0:
            return
        with writing(folder):
            lm.save_pretrained(aside)
            tokenizer.save_pretrained(aside)
    mark(aside, run_id, dict.fromkeys(path.name for path in aside.iterdir()))
    put_in_place(aside, folder, run_id)
