"""Without this file a run that is stopped would begin again from its first step.

`checkpoint-STEP/` holds every rank's shards of the weights and Adam moments, and the RunState. It
is written in `being-written/` and renamed when complete.
"""

import math
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import transformers
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from infra import folder as files
from infra import loading, ranks
from infra.errors import Stop, UserError
from infra.flags import defining_flags
from infra.log import introduce, log, print_summary, save_samples, shown_prompt
from infra.model_files import save_model
from infra.problems import encode_prompts, prompt_flags, refuse_length
from infra.ranks import is_first_rank, on_first_rank
from infra.tokens import end_tokens

# What a run writes beside config.json. A folder with any of these but no config.json is refused.
WRITTEN = ("metrics.jsonl", "samples.jsonl", "model", "best", "checkpoint-*", files.UNFINISHED)


@dataclass
class RunState:
    """The state of a run, except its weights and moments."""

    step: int = 0  # rollout batches completed
    skipped: int = 0  # updates skipped in the newest steps, in which no gradient was finite
    saved: list[str] = field(default_factory=list)  # its checkpoints, at most three, oldest first
    memory: dict = field(default_factory=dict)  # what the method keeps between steps
    best: float = -math.inf  # the highest evaluation after step 0, at step best_step
    best_step: int = 0
    updated: bool = True  # whether there was an update: else there are no moments


class Run:
    """A run: its policy, optimiser, method, problems and folder, and how far it is."""

    def __init__(self, cfg, policy, tokenizer, optimizer, method, problems: list, held_out: list):
        """Start the run in --output-dir, or go on with it. All ranks call this. Raises UserError.

        Files are written only after all checks.
        """
        self.cfg = cfg
        self.policy = policy
        self.tokenizer = tokenizer
        self.optimizer = optimizer
        self.method = method  # a methods.Method
        self.rank, self.world = ranks.rank_and_world()
        self.folder = Path(cfg.output_dir)
        encoding = (tokenizer, cfg.max_prompt_tokens, *prompt_flags(cfg).values())
        self.problems, self.prompts = encode_prompts(problems, *encoding)  # prompts: token ids
        if len(self.problems) < cfg.prompts:
            raise UserError(
                f"--data {cfg.data} has {len(self.problems)} problems, fewer than --prompts "
                f"{cfg.prompts}: lower --prompts, and --mini-batch with it"
            )
        self.held_out, self.held_out_prompts = encode_prompts(held_out, *encoding)
        self.stop_signal = None  # SIGTERM or SIGINT, once received

        every_prompt = self.prompts + self.held_out_prompts
        refuse_length(policy.lm.config, every_prompt, cfg.max_new_tokens)
        identity = self.identity(every_prompt)
        on_first_rank(files.claim, self.folder, identity, WRITTEN, type(cfg))
        self.state = restore(self.folder, policy, optimizer)
        self.method.memory.update(self.state.memory)
        if self.state.step > cfg.steps:
            raise UserError(f"{self.folder} is already at step {self.state.step}: raise --steps")
        ends = end_tokens(policy.sampling_lm[0], tokenizer)
        shown = shown_prompt(tokenizer, self.prompts[0], ends)  # for people to read
        on_first_rank(begin_writing, self.folder, asdict(cfg) | identity | shown, self.state)
        if 0 < self.state.step == self.state.best_step:  # a kill may have come before its export
            export(self.folder / "best", policy, tokenizer, cfg)
        self.tracker = None
        if cfg.track and self.rank == 0:
            from infra.trackers import started_tracker

            self.tracker = started_tracker(cfg, self.folder)
        introduce(self)

    def identity(self, prompts: list[list[int]]) -> dict:
        """What the results depend on: a folder keeps the run of one identity.

        It holds the dtype itself, since --dtype auto may choose another one on the next machine.
        """
        model = Path(self.policy.lm.name_or_path)  # its folder
        dtype = str(loading.computation_dtype(self.cfg.dtype)).removeprefix("torch.")
        flags = defining_flags(self.cfg) | {"dtype": dtype}
        seen = {"problems": [self.problems, self.held_out], "prompts": prompts}
        return on_first_rank(partial(files.identity_of, "train", flags, model, **seen))

    def save_samples(self, rollouts: list, tokens, weight) -> None:
        """Save --samples responses of the newest step: step 1, each --eval-every and the last."""
        step = self.state.step
        if step in (1, self.cfg.steps) or step % self.cfg.eval_every == 0:
            save_samples(self, step, rollouts, tokens, weight)

    def stop_if_diverged(self, metrics: dict) -> None:
        """Raise FloatingPointError after three updates in a row whose gradient was not finite."""
        self.state.skipped += metrics["skipped_updates"]
        if metrics["updates"]:
            self.state.skipped = 0
        if self.state.skipped >= 3:
            raise FloatingPointError("the gradient norm was not finite in 3 updates in a row")

    @contextmanager
    def signals(self) -> Iterator[None]:
        """A context in which SIGTERM and Ctrl-C are kept for `stop_after_signal`."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.receive) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def receive(self, number: int, _) -> None:
        """Handle SIGTERM and Ctrl-C: stop after the step; a second Ctrl-C stops at once."""
        self.stop_signal = signal.Signals(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if is_first_rank():  # print() is not allowed inside a signal handler
            os.write(2, b"\nstopping after this step; Ctrl-C stops at once\n")

    def stop_after_signal(self) -> None:
        """Save, and raise Stop on every rank, if any rank received a signal."""
        received = [number for number in ranks.from_all_ranks(self.stop_signal) if number]
        if received:
            self.save()
            ranks.end_ranks()
            after = f"after step {self.state.step}: rerun the command to resume"
            raise Stop(f"stopped by {received[0].name} {after}", 128 + received[0])

    def log(self, metrics: dict) -> None:
        """Write, track and print the metrics of the newest step."""
        log(self, {"step": self.state.step, **metrics})

    def is_best(self, score: float) -> bool:
        """Whether the newest model has the highest score after step 0, which is then kept."""
        better = self.state.step > 0 and score > self.state.best
        if better:
            self.state.best, self.state.best_step = score, self.state.step
        return better

    def keep_best(self) -> None:
        """Export the model to best/. All ranks call this."""
        export(self.folder / "best", self.policy, self.tokenizer, self.cfg)

    def finish(self) -> None:
        """Export the model, print a summary and end the ranks, which all call this."""
        export(self.folder / "model", self.policy, self.tokenizer, self.cfg)
        print_summary(self)
        ranks.end_ranks()

    def save(self) -> None:
        """Write checkpoint-STEP/, and keep only the previous one beside it. All ranks call this.

        None is written at step 0, or after a skipped update, when the run may be diverging. A
        checkpoint that a user put there is never deleted. Raises Stop.
        """
        final = self.folder / f"checkpoint-{self.state.step:06d}"
        if self.state.step == 0 or self.state.skipped > 0 or on_first_rank(final.exists):
            return
        old = [self.folder / name for name in self.state.saved[:-1]]
        self.state.saved = [*self.state.saved[-2:], final.name]
        self.state.memory = self.method.memory
        self.state.updated = bool(self.optimizer.state)
        written = content(self.policy, self.optimizer, self.state)
        with files.writing(final):  # flushed to the disk; returns when all ranks have written
            dcp.save(written, checkpoint_id=self.folder / files.UNFINISHED)
        on_first_rank(put_in_place, self.folder, final, old)


# ---- its folder ----------------------------------------------------------------------------------


def begin_writing(folder: Path, config: dict, state: RunState) -> None:
    """Write config.json, and delete what was written after the checkpoint to resume from.

    Prints what a user should know about a run that goes on. Raises UserError if its checkpoints are
    lost: it would begin again, and replace its metrics and models.
    """
    old = files.read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    steps = {line["step"] for line in files.read_lines(folder / "metrics.jsonl")}
    last = max(steps, default=0)
    finished = (folder / "model/config.json").exists()
    if state.step == 0 and (finished or last > old.get("save_every", last)):
        has = "a model" if finished else f"metrics of {last} steps"
        raise UserError(
            f"{folder} has {has} but no checkpoint: put the newest one back there, or choose "
            "another --output-dir"
        )
    lacking = len({*range(1, state.step + 1)} - steps)
    if lacking:
        print(f"{folder}/metrics.jsonl lacks {lacking} of the {state.step} steps so far")
    code = code_and_versions()
    known = [name for name in code if name in old]  # none in an older folder
    other = [f"{name} {old[name]}, now {code[name]}" for name in known if old[name] != code[name]]
    if other and state.step > 0:
        print(f"{folder} goes on under other code: {'; '.join(other)}")

    for path in folder.glob(f"*{files.UNFINISHED}"):  # of a checkpoint or a model
        shutil.rmtree(path, ignore_errors=True)
    files.write_json(folder / "config.json", config | code)
    kept = state.step or -1  # from the start, step 0 is evaluated again
    for path in (folder / "samples.jsonl", folder / "metrics.jsonl"):
        files.write_lines(path, [x for x in files.read_lines(path) if x["step"] <= kept])


def code_and_versions() -> dict:
    """The commit of this code, its changed files, and the versions of its libraries.

    Without git, or outside a repository, there is no commit.
    """

    def git(*words: str) -> str:
        if not shutil.which("git"):
            return ""
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True).stdout

    changed = git("status", "--porcelain", "--untracked-files=no").splitlines()
    return {
        "commit": git("rev-parse", "HEAD").strip(),
        "changed_files": [line[3:] for line in changed],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


# ---- checkpoints and models ----------------------------------------------------------------------


def content(policy, optimizer, state: RunState) -> dict:
    """What a checkpoint holds: this rank's shards, and the state. Before any update, the state."""
    if not state.updated:
        return {"state": state}
    weights, moments = get_state_dict(policy, optimizer)
    return {"weights": weights, "moments": moments, "state": state}


def put_in_place(folder: Path, final: Path, old: list[Path]) -> None:
    """Rename a complete checkpoint, and delete old ones."""
    os.rename(folder / files.UNFINISHED, final)
    for path in old:
        shutil.rmtree(path, ignore_errors=True)  # a user may have moved it, or left a link


def restore(folder: Path, policy, optimizer) -> RunState:
    """Load the newest checkpoint, on any number of ranks; a new RunState if there is none.

    Raises UserError if it is damaged.
    """
    paths = on_first_rank(sorted, folder.glob("checkpoint-" + 6 * "[0-9]"))
    if not paths:
        return RunState()
    *older, newest = paths
    try:
        read = {"state": RunState()}
        dcp.load(read, checkpoint_id=newest)
        state = read["state"]
        if state.updated:
            read = content(policy, optimizer, state)
            dcp.load(read, checkpoint_id=newest)
            weights, moments, _ = read.values()
            set_state_dict(policy, optimizer, model_state_dict=weights, optim_state_dict=moments)
    except (Exception, CheckpointException) as error:
        then = f"goes on from {older[-1].name}" if older else "begins again"
        trouble = f"cannot be read ({type(error).__name__})"
        raise UserError(f"{newest} {trouble}: delete it, and the run {then}") from error
    if is_first_rank():
        print(f"continuing {folder} after step {state.step}")
    return state


def export(folder: Path, policy, tokenizer, cfg) -> None:
    """Write the model to `folder` in the compute dtype. All ranks call this."""
    with policy.unsharded() as lm:
        if is_first_rank():
            save_model(folder, lm, tokenizer, prompt_flags(cfg) | {"stop": cfg.stop})
