"""A run of train.py: its state, opening or resuming it, and stopping it on a signal."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from infra import checkpoints
from infra.checkpoints import RunState, begin_writing, restore, save
from infra.errors import Interrupted, Stop
from infra.folder import lock, unlock
from infra.loading import load_policy
from infra.model_files import locate, refuse_length
from infra.policy import Policy
from infra.problems import encode_prompts, load_problems, prepare_sandbox
from infra.ranks import end_ranks, on_first_rank, speaks, start_ranks, this_device
from infra.rows import sum_over_ranks
from infra.track import start_tracking, tracking_module
from toy.by_name import model_folder

SIGNALS = (signal.SIGTERM, signal.SIGINT)  # these stop a run at the next safe point


@dataclass
class Run:
    """The state of a run."""

    cfg: object  # train.Config
    id: str  # chosen by rank 0; marks the run's folder and files
    method: object  # methods.Method
    folder: Path
    rank: int
    world: int
    policy: Policy
    tokenizer: object
    optimizer: torch.optim.Optimizer
    state: RunState  # saved in checkpoints with the weights and moments
    problems: list[dict]
    prompts: list[list[int]]  # token ids, one list for each problem
    held_out: list[dict]
    held_out_prompts: list[list[int]]
    told_to_stop: signal.Signals | None = None
    seconds: list[float] = field(default_factory=list)  # per step, since the program started
    without_signal: int = 0  # consecutive steps in which every advantage was 0
    engine: object = None  # --engine: replaces `generate`
    track: Callable[[dict], None] | None = None  # --track: also receives each line of metrics

    def stop(self, number: int, _) -> None:
        """Handle SIGTERM and Ctrl-C: the run stops at the next safe point.

        A second Ctrl-C stops it at once. A second SIGTERM does not: torchrun and a scheduler may
        both send one.
        """
        if self.told_to_stop and number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if speaks() and not self.told_to_stop:
            again = "; Ctrl-C again stops without one" if number == signal.SIGINT else ""
            line = f"\nstopping at the next safe point, with a checkpoint{again}\n"
            os.write(2, line.encode())  # print() is not allowed inside a signal handler
        self.told_to_stop = signal.Signals(number)

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

    def save(self) -> bool:
        """Write a checkpoint, and return whether one was written. All ranks call this.

        No checkpoint is written before the first update (there are no moments yet) or after a
        skipped update (the run may be diverging). Earlier checkpoints are kept.
        """
        if not self.optimizer.state or self.state.streak > 0:
            return False
        save(self.folder, self.policy, self.optimizer, self.state)
        return True


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
        saved = "with" if run.save() else "without"
        end_ranks()
        number = run.told_to_stop or signal.SIGTERM  # else another rank received it
        raise Stop(
            f"stopped by {number.name} after step {run.state.step}, {saved} a checkpoint: "
            "rerun the command to resume",
            128 + number,
        ) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        unlock(run.folder)


def open_run(cfg, method, check_model: Callable[[Policy], None]) -> Run:
    """Load data and model, open the output folder, resume from a checkpoint. Raises UserError.

    Cheap checks come first, so an invalid flag is reported before anything large is loaded.
    check_model raises UserError if the method cannot train the model.
    """
    if cfg.engine == "vllm":
        from infra.vllm_engine import refuse_machine  # here, because vllm is optional

        refuse_machine()
    rank, world = start_ranks()
    tracking_module(cfg.track)  # raises UserError if the package is missing
    folder, _, _ = locate(model_folder(cfg))
    columns = (cfg.problem_column, cfg.answer_column, cfg.toy_k, cfg.seed)
    problems = load_problems(cfg.data, *columns)
    held_out = load_problems(cfg.eval_data, *columns, "--eval-data") if cfg.eval_data else []
    prepare_sandbox(problems + held_out, cfg.code_sandbox)

    policy, tokenizer = load_policy(folder, cfg.temperature, cfg.recompute, cfg.packing)
    check_model(policy)
    encoding = (tokenizer, cfg.max_prompt_tokens, cfg.prompt_template)
    problems, prompts = encode_prompts(problems, *encoding)
    held_out, held_out_prompts = encode_prompts(held_out, *encoding)
    refuse_length(policy.lm.config, prompts + held_out_prompts, cfg.max_new_tokens)
    engine = start_engine(cfg, folder, policy, prompts + held_out_prompts)

    on_first_rank(lock, Path(cfg.output_dir))  # files are written only after this line
    optimizer = torch.optim.AdamW(  # other optimisers lack `fused` for sharded parameters
        policy.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, fused=True
    )
    sets = {"training": problems, "evaluation": held_out}
    run_id = checkpoints.claim_folder(cfg, folder, sets, optimizer)
    state = restore(cfg, policy, optimizer)
    on_first_rank(begin_writing, cfg, run_id, state)

    return Run(
        cfg=cfg,
        id=run_id,
        method=method,
        folder=Path(cfg.output_dir),
        rank=rank,
        world=world,
        policy=policy,
        tokenizer=tokenizer,
        optimizer=optimizer,
        state=state,
        problems=problems,
        prompts=prompts,
        held_out=held_out,
        held_out_prompts=held_out_prompts,
        track=start_tracking(cfg, run_id, state.step) if rank == 0 else None,
        engine=engine,
    )


def start_engine(cfg, folder: Path, policy: Policy, prompts: list[list[int]]):
    """The engine selected by --engine, or None for `generate`. All ranks call this."""
    if cfg.engine == "generate":
        return None
    from infra.vllm_engine import VLLMEngine

    longest = max(len(prompt) for prompt in prompts) + cfg.max_new_tokens
    return VLLMEngine(folder, policy, longest, cfg.rollout_rows)
