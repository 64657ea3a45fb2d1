"""RLVR on one page: sample, grade, advantages, log-probabilities, weights, update, log, save.

`python train.py` trains the embedded toy with DelTA on a laptop; `torchrun --nproc_per_node 8
train.py --model ID` any Hugging Face causal LM on any number of GPUs, with the paper's settings
(App. I) as defaults. A run continues from the newest checkpoint in its --output-dir.

Departures from the paper's text: (1) weight decay 0.1 and gradient clip 1.0, as in the released
code; (2) a mini-batch in which no response has an advantage makes no optimiser step. From the
released code: (3) the loss divides by the tokens of a whole mini-batch on all ranks, as in the
text, and is no average over micro-batches. (4) The evaluations of a run have its own limit of
response tokens; evaluate.py has the paper's 30,000.
"""

import os
import signal
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers.utils import logging as hf_logging

import ablations
import methods
import toy
from ablations import AblationFlags
from delta import delta_coefficients
from evaluate import grades, sample_grades
from grpo import clipped_tokens, group_advantages, importance_weights
from infra.agreement import computation_dtype
from infra.architecture import refuse_length
from infra.checkpoints import RunState, begin_writing, export, open_run, restore, save
from infra.disk import check_disk, run_bytes
from infra.errors import Interrupted, Stop, UserError
from infra.flags import (
    EvaluationFlags,
    MemoryFlags,
    OptimisationFlags,
    Parser,
    RunFlags,
    ToyFlags,
    TrainingSamplingFlags,
    TrainingTaskFlags,
    check_limits,
    flag,
    refuse_changed,
)
from infra.identity import check_places, data_hash, lock, unlock
from infra.loading import check_files, load_policy, locate
from infra.log import (
    draw_curves,
    hint_without_signal,
    introduce,
    log,
    mismatch,
    pace,
    report,
    save_samples,
)
from infra.memory import dry_run
from infra.optimise import clip_and_step
from infra.packing import MiniBatch, Rollouts, TokenBatch, join, packed_rows, plan_mini_batches
from infra.policy import Policy, old_log_probabilities, room_for
from infra.problems import SEED_STRIDE, SOURCES, draw_indices, encode_prompts, load_and_count
from infra.progress import Progress
from infra.ranks import end_ranks, leave, on_first_rank, start_ranks, this_device
from infra.rows import over_ranks
from methods import METHODS, Method
from programs.sandbox.probe import prepare_sandbox
from rollout import rollout

SIGNALS = (signal.SIGTERM, signal.SIGINT)  # ask a run to stop at the next safe point

# ---- the loop ------------------------------------------------------------------------------------


def train(cfg: "Config") -> Path:
    """Run or continue the training described by cfg; returns the output folder. All ranks call."""
    try:
        return continue_run(prepare(cfg))
    finally:
        unlock(Path(cfg.output_dir))


def continue_run(run: "Run") -> Path:
    """From where it is to its last step, its exported model and its curves."""
    cfg = run.cfg
    introduce(run, TrainingMethodFlags)
    before = {number: signal.signal(number, run.stop) for number in SIGNALS}
    try:
        if cfg.eval_data and run.state.step == 0:
            log(run.folder, {"step": 0, "eval_accuracy": evaluate(run)}, cfg.steps)
        if run.state.unlogged:
            finish_step(run)  # it was interrupted in its evaluation
        for step in range(run.state.step + 1, cfg.steps + 1):
            train_step(run, step)
    except Interrupted:  # where θ and the run's state belong together
        save(run.folder, run.policy, run.optimizer, run.state)
        end_ranks()
        number = run.told_to_stop or signal.SIGTERM  # which reached another rank
        raise Stop(
            f"stopped by {number.name} after step {run.state.step}, with a checkpoint: "
            "the same command continues",
            128 + number,
        ) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

    export(run.folder / "model", run.policy, run.tokenizer, run.id)
    if run.rank == 0:
        report(run.folder)
    return run.folder


def train_step(run: "Run", step: int) -> None:
    """One rollout batch, and one optimiser step for each of its mini-batches."""
    cfg = run.cfg
    started = time.perf_counter()

    # o_i ~ π_old, G responses to each prompt, and R_i = 1 if the final answer is right, else 0
    rollouts, problems, rewards, position = sample(run, step)

    # A_i = (R_i - mean) / std within each group
    penalty = overlong_penalty(rollouts.response_length, cfg.max_new_tokens, cfg.overlong_buffer)
    advantages = group_advantages(rewards + penalty, cfg.group_size)  # [B]
    hint_without_signal(run, advantages)

    # The pass over θ_old and the updates go through the same micro-batches, so that the first
    # ratio is exactly 1.
    plan = plan_mini_batches(
        rollouts,
        advantages,
        cfg.mini_batch * cfg.group_size,
        cfg.micro_batch_tokens,
        run.rank,
        run.world,
        run.policy.layout,
    )

    # log π_old of every token; what the method needs of the hidden states is kept on the way
    tokens = old_log_probabilities(run.policy, rollouts, plan, run.method.keep, cfg.proxy_budget_gb)
    look_for_signals(run)
    tokens.advantage = advantages.repeat_interleave(tokens.length)  # [N]
    if cfg.importance_cap:
        check_sampled(tokens)
        tokens.importance = importance_weights(tokens.logprob, tokens.sampled, cfg.importance_cap)
    tokens.current = tokens.logprob  # θ is θ_old; for methods that follow the policy
    tokens.problems = problems
    tokens.generator = torch.Generator().manual_seed(SEED_STRIDE * cfg.seed + step)
    tokens.memory = run.state.memory

    # ρ, the method's weight of every token; frozen over the updates, unless it follows the policy
    weights = run.method.weights(tokens, cfg)  # [N]
    check_weights(weights, tokens, cfg.method)
    tokens.kept = None  # room for the update

    # θ_old becomes θ
    of_updates = update(run, rollouts, tokens, weights, plan)

    run.state.step = step
    run.state.position = position
    run.state.unlogged = {
        "step": step,
        **of_updates,
        **rollout_metrics(rollouts, rewards, tokens, weights),
        "seconds": time.perf_counter() - started,
    }
    if step == 1 or step % cfg.eval_every == 0:
        save_samples(run.folder, step, problems, rollouts, rewards, weights, run.tokenizer)
    finish_step(run)


def rollout_metrics(
    rollouts: Rollouts, rewards: torch.Tensor, tokens: TokenBatch, weights: torch.Tensor
) -> dict:
    """What metrics.jsonl says of a rollout batch, at θ_old; README has a line on each."""
    return {
        "reward": float(rewards.mean()),
        "entropy": float(tokens.entropy.mean()),
        "response_length": float(tokens.length.float().mean()),
        "truncated": float(rollouts.truncated.float().mean()),
        "lambda_std": float(weights.std()),
        "lambda_above_one": float((weights > 1).float().mean()),
        **mismatch(tokens.logprob, tokens.sampled),
    }


def finish_step(run: "Run") -> None:
    """Evaluate, log and save after an update, or after a run that was stopped before it could.

    Raises Interrupted; the run's state then holds what is needed to do it later.
    """
    look_for_signals(run)
    cfg, metrics, step = run.cfg, run.state.unlogged, run.state.step
    if cfg.eval_data and (step % cfg.eval_every == 0 or step == cfg.steps):
        metrics = metrics | {"eval_accuracy": evaluate(run)}
        keep_best(run, metrics["eval_accuracy"])
    log(run.folder, metrics, cfg.steps, pace(run, metrics))
    if "eval_accuracy" in metrics:
        draw_curves(run.folder)
    run.state.unlogged = {}
    due = step % cfg.save_every == 0 or step == cfg.steps
    diverging = run.state.streak > 0  # the last updates were skipped: keep the good checkpoints
    if due and not diverging:
        save(run.folder, run.policy, run.optimizer, run.state)


def look_for_signals(run: "Run") -> None:
    """Raise Interrupted on every rank if one of them was told to stop."""
    told = torch.tensor(float(run.stopping()), device=this_device())
    if over_ranks(told) > 0:
        raise Interrupted


def update(
    run: "Run",
    rollouts: Rollouts,
    tokens: TokenBatch,
    weights: torch.Tensor,
    plan: list[MiniBatch],
) -> dict:
    """One optimiser step per mini-batch on J = (1/N) Σ ρ min(r A, clip(r) A) (Eq. 8).

    N counts the tokens of all the mini-batch's responses, on all ranks. SAPO and REINFORCE have
    other surrogates than the minimum. Returns the metrics of the step's updates.
    """
    cfg, method = run.cfg, run.method
    loss = 0.0
    clipped = 0
    norms = []
    mine = [int(tokens.length[index].sum()) for each in plan for index in each.trained]
    progress = Progress("update", sum(mine))
    for mini_batch in plan:
        # Responses without an advantage are left out: Eq. 8 gives them no gradient. A term on every
        # token, such as a KL penalty, would lose theirs: it needs mini_batch.micro_batches here.
        batches = mini_batch.trained
        if not batches:
            continue  # no response has an advantage: no sides, no direction (App. C)

        for index in batches:
            rows = packed_rows(index, tokens.length)  # where these responses' tokens are
            logprob = run.policy.rows(rollouts, index).logprob  # log π_θ, with its gradient
            old_logprob = tokens.logprob[rows]
            advantage = tokens.advantage[rows]
            weight = weights_of(run, tokens, index, weights[rows], logprob)  # ρ; λ̄ with DelTA
            surrogate = method.surrogate(logprob, old_logprob, advantage, cfg)
            objective = (weight * surrogate).sum() / mini_batch.token_count  # Eq. 8
            run.policy.reduce_over_nodes(index is batches[-1])
            (-objective * run.world).backward()  # FSDP averages over ranks, Eq. 8 sums

            loss -= float(objective.detach())
            if method.clips:
                silenced = clipped_tokens(
                    logprob.detach(), old_logprob, advantage, cfg.clip_low, cfg.clip_high
                )
                clipped += int(silenced.sum())
            progress.add(len(rows))

        # Steps, forgets the gradient, and counts updates skipped in a row in run.state.
        norms.append(clip_and_step(run.policy, run.optimizer, cfg.max_grad_norm, run.state))
    progress.close()

    totals = torch.tensor([loss, clipped], dtype=torch.float64, device=tokens.logprob.device)
    loss, clipped = over_ranks(totals).tolist()
    finite = [norm for norm in norms if norm < float("inf")]  # false for a NaN, too
    return {
        "loss": loss / len(plan),
        "grad_norm": sum(finite) / max(1, len(finite)),
        "clip_fraction": clipped / len(tokens.logprob),
        "skipped_updates": len(norms) - len(finite),
    }


def weights_of(
    run: "Run",
    tokens: TokenBatch,
    index: torch.Tensor,
    frozen: torch.Tensor,
    logprob: torch.Tensor,
) -> torch.Tensor:
    """ρ of the tokens of the responses `index`, [n]: `frozen`, unless the method follows π_θ.

    Times the importance weight where the sampler's law is not quite that of θ_old.
    """
    weight = frozen
    if run.method.follows_policy and len(index) > 0:  # a rank's last ones may be empty
        part = tokens.part(index, logprob.detach())
        weight = run.method.weights(part, run.cfg)
        check_weights(weight, part, run.cfg.method)
    if tokens.importance is not None:
        weight = weight * tokens.importance[packed_rows(index, tokens.length)]
    return weight


# ---- what the loop calls -------------------------------------------------------------------------


@dataclass
class Run:
    """All that a run holds."""

    cfg: "Config"
    id: str  # rank 0's; see infra/identity.py
    method: Method
    folder: Path
    rank: int
    world: int
    policy: Policy
    tokenizer: object
    optimizer: torch.optim.Optimizer
    state: RunState
    problems: list[dict]
    prompts: list[list[int]]  # token ids, one list for each problem
    held_out: list[dict]
    held_out_prompts: list[list[int]]
    dropped: int = 0  # problems without an answer, repeated, or with a prompt that is too long
    told_to_stop: signal.Signals | None = None
    seconds: list[float] = field(default_factory=list)  # of the steps since it was started
    without_signal: int = 0  # steps in a row in which no response had an advantage

    def stop(self, number: int, _) -> None:
        """Handles SIGTERM and Ctrl-C: the run stops at the next safe point.

        A second Ctrl-C stops it at once. A second SIGTERM does not: torchrun and a scheduler may
        both send one.
        """
        if self.told_to_stop and number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.told_to_stop = signal.Signals(number)

    def stopping(self) -> bool:
        return self.told_to_stop is not None


def prepare(cfg: "Config") -> Run:
    """Load data and model, open the output folder, continue from a checkpoint. Raises UserError."""
    rank, world = start_ranks()
    folder, *parts = locate(model_folder(cfg))
    check_files(cfg.model, folder, *parts)  # a wrong --model is said before any data is fetched
    check_places(folder, Path(cfg.output_dir))
    columns = (cfg.problem_column, cfg.answer_column, cfg.toy_k, cfg.seed)
    problems, dropped = load_and_count(cfg.data, *columns)
    held_out, more_dropped = load_and_count(cfg.eval_data, *columns) if cfg.eval_data else ([], 0)
    if any("tests" in each for each in problems + held_out):
        prepare_sandbox(cfg.code_sandbox)

    policy, tokenizer = load_policy(
        folder, cfg.temperature, cfg.recompute, cfg.packing, cfg.compile
    )
    ablations.check_model(cfg, policy)
    loaded = len(problems) + dropped + len(held_out) + more_dropped
    encoding = (tokenizer, cfg.max_prompt_tokens, cfg.prompt_template)
    problems, prompts = encode_prompts(problems, *encoding)
    held_out, held_out_prompts = encode_prompts(held_out, *encoding)
    refuse_length(policy.lm.config, prompts + held_out_prompts, cfg.max_new_tokens)

    on_first_rank(lock, Path(cfg.output_dir))  # the flags have been checked by now
    hashes = {"training": data_hash(problems), "evaluation": data_hash(held_out)}
    run_id = on_first_rank(open_run, cfg, hashes)
    parameters = sum(p.numel() for p in policy.parameters())
    needed = run_bytes(parameters, computation_dtype().itemsize, cfg)
    on_first_rank(check_disk, Path(cfg.output_dir), needed)
    optimizer = torch.optim.AdamW(  # of others `fused` cannot do with sharded parameters
        policy.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, fused=True
    )
    state = restore(cfg, policy, optimizer)
    on_first_rank(begin_writing, cfg, state)

    return Run(
        cfg=cfg,
        id=run_id,
        method=ablations.configured(METHODS[cfg.method], cfg),
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
        dropped=loaded - len(problems) - len(held_out),
    )


def check_sampled(tokens: TokenBatch) -> None:
    """Raise UserError where the sampler does not say how likely a token was."""
    silent = int(tokens.sampled.isnan().sum())
    if silent:
        raise UserError(
            f"--importance-cap: the sampler gave no log-probability of {silent} of "
            f"{len(tokens.sampled)} tokens: have it give them, or drop the flag"
        )


def check_weights(weights: torch.Tensor, tokens: TokenBatch, method: str) -> None:
    """Raise UserError where a method did not give one weight of at least 0 to each token."""
    wanted = tokens.logprob.shape
    if weights.shape != wanted:
        raise UserError(
            f"--method {method} gave weights of shape {tuple(weights.shape)}: "
            f"it must give one to each of the {len(tokens.logprob)} tokens"
        )
    policy_is_finite = tokens.current.isfinite().all()  # else the update is skipped, and counted
    if policy_is_finite and not weights.isfinite().all():
        raise UserError(f"--method {method} gave a weight that is NaN or infinite")
    if (weights < 0).any():
        raise UserError(
            f"--method {method} gave a negative weight, which would move a token to the other side"
        )


def model_folder(cfg: "Config") -> str | Path:
    """Where the model of --model is: the toy's base, or what the flag says."""
    if cfg.model == "toy":
        task = (cfg.toy_k, cfg.toy_noise, cfg.toy_filler)
        return toy.base_folder(*task, regime=cfg.toy_regime, zipf=cfg.toy_zipf)
    if cfg.model == "toy-code":
        return toy.code_base_folder()
    return cfg.model


def sample(run: Run, step: int) -> tuple[Rollouts, list[dict], torch.Tensor, int]:
    """Sample and grade a rollout batch.

    Returns (rollouts of B responses, their B problems, rewards [B] in {0, 1}, where the stream of
    prompts then stands). With --dynamic-sampling, groups of equal rewards make room for further
    prompts, in up to 10 rounds; what is then missing is filled up with such groups. Raises
    Interrupted.
    """
    cfg, G = run.cfg, run.cfg.group_size
    parts, problems, rewards = [], [], []
    position = run.state.position
    sampled = Counter()  # responses by problem, over the rounds
    for _ in range(10 if cfg.dynamic_sampling else 1):
        chosen = draw_indices(len(run.problems), position, cfg.prompts, cfg.seed)
        position += cfg.prompts
        with run.policy.plain() as lm:
            part = rollout(
                lm,
                run.tokenizer,
                [run.prompts[i] for i in chosen],
                chosen,
                G,
                cfg.max_new_tokens,
                cfg.temperature,
                seed=cfg.seed,
                step=step,
                in_flight=cfg.rollout_rows,
                stop=run.stopping,
                sampled_before=sampled,
            )
        parts.append(part)
        asked = [run.problems[i] for i in chosen for _ in range(G)]
        problems += asked
        rewards += training_rewards(part.texts, asked)

        groups = [rewards[i : i + G] for i in range(0, len(rewards), G)]
        mixed = [len(set(group)) > 1 for group in groups]
        if sum(mixed) >= cfg.prompts:
            break

    order = list(range(len(groups)))
    if cfg.dynamic_sampling:
        order.sort(key=lambda g: not mixed[g])  # groups whose rewards differ first; stable
    index = [g * G + i for g in order[: cfg.prompts] for i in range(G)]
    rollouts = join(parts).pick(index)
    rewards = torch.tensor([rewards[i] for i in index], device=rollouts.ids.device)
    return rollouts, [problems[i] for i in index], rewards, position


def training_rewards(responses: list[str], problems: list[dict]) -> list[float]:
    """R of each response: its grade. Another reward for training goes here; evaluation stays."""
    return grades(responses, problems)


def overlong_penalty(length: torch.Tensor, max_length: int, buffer: int) -> torch.Tensor:
    """DAPO's soft length penalty, added to the rewards: [B], between -1 and 0.

    0 up to `buffer` tokens before `max_length`, then falling linearly to -1 at it; 0 throughout
    where buffer is 0. length: [B] tokens of each response. The paper's text has a binary reward;
    its run script adds this with a buffer of 4096 (--overlong-buffer).
    """
    if buffer == 0:
        return torch.zeros_like(length, dtype=torch.float32)
    beyond = length - (max_length - buffer)
    return (-beyond / buffer).clamp(max=0.0)


def evaluate(run: Run) -> float:
    """avg@n on the held-out problems: the mean grade of --eval-samples responses to each."""
    cfg = run.cfg
    with run.policy.plain() as lm:
        grades = sample_grades(
            lm,
            run.tokenizer,
            run.held_out,
            run.held_out_prompts,
            cfg.eval_samples,
            cfg.max_new_tokens,
            cfg.temperature,
            cfg.eval_top_p,
            cfg.seed,
            cfg.rollout_rows,
            run.stopping,
        )
    return float(grades.mean())


def keep_best(run: Run, accuracy: float) -> None:
    """Export the model to best/ if it beats every earlier evaluation after an update."""
    if accuracy <= run.state.best:
        return
    run.state.best = accuracy
    export(run.folder / "best", run.policy, run.tokenizer, run.id)


# ---- flags: the groups that stand in infra/flags.py, and the methods' ----------------------------


@dataclass
class TrainingMethodFlags(AblationFlags):
    _argument_group_name = "method"

    method: str = flag("delta", "token weights (App. E)", choices=sorted(METHODS))


@dataclass
class Config(
    RunFlags,
    TrainingTaskFlags,
    TrainingMethodFlags,
    TrainingSamplingFlags,
    OptimisationFlags,
    MemoryFlags,
    EvaluationFlags,
    ToyFlags,
):
    """Every knob of a run, in the groups of --help."""


TOY = {  # the defaults under --model toy
    "recompute": False,
    "steps": 160,
    "prompts": 16,
    "group_size": 8,
    "mini_batch": 4,
    "micro_batch_tokens": 4096,
    "lr": 1e-4,
    "max_new_tokens": 64,
    "max_prompt_tokens": 64,
    "eval_every": 20,
    "eval_samples": 1,
    "eval_top_p": 1.0,
    "save_every": 20,
    "data": "toy",
    "eval_data": "toy-held-out",
}
OF_CODE = {  # where those under --model toy-code differ
    "steps": 100,
    "max_new_tokens": 32,
    "data": "toy-code",
    "eval_data": "toy-code-held-out",
}
TOYS = {"toy": TOY, "toy-code": TOY | OF_CODE}


def listed(defaults: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in defaults.items())


def parse_config(argv: list[str] | None = None) -> Config:
    """The command line over the toy's and the method's defaults, over the paper's.

    Raises UserError for flags that are unknown, out of their limits or contradict each other.
    """
    parser = Parser(
        list(Config.__bases__),
        prog="train.py",
        description=__doc__.splitlines()[0],
        epilog=f"Known names for --data: {', '.join(SOURCES)}. "
        f"With --model toy the defaults are: {listed(TOY)}. "
        f"With --model toy-code they are those, but: {listed(OF_CODE)}",
    )
    given, _ = parser.parse_known_args(argv)
    if given.model in TOYS:
        parser.set_defaults(**TOYS[given.model])
    if METHODS[given.method].clips:
        clip_low, clip_high = METHODS[given.method].default_clip
        parser.set_defaults(clip_low=clip_low, clip_high=clip_high)

    cfg = Config(**vars(parser.parse_args(argv)))
    cfg.model = str(Path(cfg.model))  # without a slash at its end
    if not cfg.output_dir:
        cfg.output_dir = f"runs/{Path(cfg.model).name}-{cfg.method}-{cfg.seed}"

    check_limits(cfg)
    if cfg.model == "toy-code":
        chains_only = ("toy_regime", "toy_k", "toy_noise", "toy_filler", "toy_zipf")
        refuse_changed(cfg, chains_only, "toy-code has one base model")
    methods.check_flags(cfg)
    ablations.check_flags(cfg)
    if 0 < cfg.importance_cap < 1:
        raise UserError(
            f"--importance-cap {cfg.importance_cap} would weigh every token down: "
            "take 1 or more, or 0 for none"
        )
    if cfg.prompts % cfg.mini_batch:
        raise UserError(
            f"--prompts {cfg.prompts} is not a multiple of --mini-batch {cfg.mini_batch}"
        )
    if cfg.world_size > 8 and cfg.world_size % 8:
        raise UserError(f"--world-size {cfg.world_size} is neither up to 8 nor a multiple of 8")
    return cfg


# ---- main ----------------------------------------------------------------------------------------

KNOBS = {  # function in whose call the memory ran out -> the flag to lower
    sample.__name__: "--rollout-rows",
    evaluate.__name__: "--rollout-rows",
    old_log_probabilities.__name__: "--micro-batch-tokens",
    room_for.__name__: "--proxy-budget-gb",
    delta_coefficients.__name__: "--proxy-budget-gb",
    update.__name__: "--micro-batch-tokens",
}


def out_of_memory(error: torch.OutOfMemoryError) -> str:
    """One line on which flag to lower."""
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    stage = next((name for name in reversed(frames) if name in KNOBS), update.__name__)
    return (
        f"train.py: out of GPU memory in {stage}: lower {KNOBS[stage]}, or spread the model over "
        f"more GPUs (--dry-run says what it needs). {str(error).splitlines()[0]}"
    )


def main(argv: list[str] | None = None) -> Path | None:
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        cfg = parse_config(argv)
        if cfg.dry_run:
            dry_run(cfg)
            return None
        folder = train(cfg)
        end_ranks()
        return folder
    except UserError as error:
        leave(f"train.py: {error}", 2)
    except Stop as stop:
        leave(f"train.py: {stop}", stop.code)
    except KeyboardInterrupt:  # before the first step, or after the last one
        leave("train.py: stopped by Ctrl-C: the same command continues", 128 + signal.SIGINT)
    except FloatingPointError as error:  # the run diverged: neither a bug nor a wrong flag
        leave(f"train.py: stopped, {error}. The last checkpoint is untouched; try a lower --lr.", 1)
    except torch.OutOfMemoryError as error:
        leave(out_of_memory(error), 1)


if __name__ == "__main__":
    main()
