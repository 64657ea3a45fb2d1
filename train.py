"""The training loop of RLVR: sample, grade, advantages, log-probabilities, weights, loss, step.

`python train.py` trains the built-in toy model with DelTA on a laptop. `torchrun --nproc_per_node 8
train.py --model ID` trains a Hugging Face causal LM on any number of GPUs. Defaults are the paper's
(App. I). A run resumes from the newest checkpoint in its --output-dir.

Departures from the paper's text: (1) weight decay 0.1 and gradient clip 1.0, as in the released
code; (2) no optimiser step for a mini-batch whose advantages are all 0; (3) evaluations during
training are limited to --max-new-tokens, while evaluate.py uses the paper's 30,000. Departure from
the released code: (4) the loss is divided by a mini-batch's token count over all ranks, as in the
text, not averaged over micro-batches.

Shapes: B responses per step, G per prompt, N packed response tokens, n in a micro-batch.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

import ablations
from ablations import AblationFlags
from grading import graded_once, grades, report_unearnable, sample_grades
from grpo import clipped_tokens, group_advantages, importance_weights, overlong_penalty
from infra.checkpoints import export
from infra.errors import one_line_endings
from infra.log import introduce, log, report, rollout_metrics, save_samples
from infra.packing import (
    MiniBatch,
    Rollouts,
    TokenBatch,
    join,
    packed_rows,
    plan_mini_batches,
    uploaded,
)
from infra.policy import old_log_probabilities
from infra.problems import SEED_STRIDE, draw_indices
from infra.progress import Progress, Stopwatch
from infra.ranks import end_ranks, full_tensor
from infra.rows import sum_over_ranks
from infra.run import Run, open_run, running
from infra.training_flags import TRAINING_GROUPS, training_config
from methods import METHODS, Method, token_weights
from rollout import Sampling, rollout

# ---- the loop ------------------------------------------------------------------------------------


def train(cfg: "Config", method: Method | None = None) -> Path:
    """Run or resume the training described by cfg. Returns the output folder. All ranks call this.

    method: overrides the method in cfg, for methods that no flag selects.
    """
    run = prepare(cfg, method)
    with running(run):  # saves a checkpoint on a signal
        introduce(run)  # prints the settings
        if cfg.eval_data and run.state.step == 0:
            log(run, {"step": 0, **evaluate(run)})
        if run.state.unlogged:
            finish_step(run)  # the run stopped before evaluating and logging its last step

        for step in range(run.state.step + 1, cfg.steps + 1):
            train_step(run, step)

        export(run.folder / "model", run.policy, run.tokenizer, run.id)
        report(run)
    return run.folder


def prepare(cfg: "Config", method: Method | None = None) -> Run:
    """The run described by cfg, new or resumed: model, data, folder and method."""
    method = method or ablations.configured(METHODS[cfg.method], cfg)
    run = open_run(cfg, method, check_model=partial(ablations.check_model, cfg))
    report_unearnable(run.problems + run.held_out)
    return run


def train_step(run: Run, step: int) -> None:
    """One rollout batch, and one optimiser step per mini-batch."""
    cfg, method = run.cfg, run.method
    watch = Stopwatch()

    # o_i ~ π_old, G responses per prompt, and R_i = 1 if the final answer is right, else 0
    rollouts, problems, rewards, position = sample(run, step, watch)

    # A_i = (R_i - mean) / std within each group
    penalty = overlong_penalty(rollouts.response_length, cfg.max_new_tokens, cfg.overlong_buffer)
    advantages = group_advantages(rewards + penalty, cfg.group_size)  # [B]

    # The pass at θ_old and the updates run the same micro-batches, so the first ratio is exactly
    # 1. Responses with advantage 0 get micro-batches of their own, which the update skips.
    plan = plan_mini_batches(
        rollouts,
        advantages,
        cfg.mini_batch * cfg.group_size,
        cfg.micro_batch_tokens,
        run.rank,
        run.world,
        run.policy.layout,  # padded or packed, and what a micro-batch costs
    )

    # log π_old of every token, and the method's `keep` applied to the hidden states (App. L.1)
    tokens = old_log_probabilities(run.policy, rollouts, plan, method.keep, cfg.proxy_budget_gb)
    run.look_for_signals()  # raises Interrupted after a signal
    watch.lap("scoring")

    # ρ, the method's weight for every token: λ̄ for DelTA. It stays fixed during the updates
    # (App. H), unless method.follows_policy.
    tokens = tokens.completed(
        advantages,  # repeated over each response's tokens: [N]
        problems=problems,
        generator=torch.Generator().manual_seed(SEED_STRIDE * cfg.seed + step),
        memory=run.state.memory,
    )
    weights = token_weights(method, tokens, cfg)  # [N]
    tokens.kept = None  # frees the hidden states before the update
    watch.lap("weighting")

    of_updates = update(run, rollouts, tokens, weights, plan)  # θ_old becomes θ
    watch.lap("updating")

    run.state.step = step
    run.state.position = position
    run.state.unlogged = {
        "step": step,
        **of_updates,
        **rollout_metrics(rollouts, rewards, tokens, weights),
        **watch.seconds(),
    }
    if step == 1 or step % cfg.eval_every == 0:
        save_samples(run, step, problems, rollouts, rewards, tokens, weights)
    finish_step(run)


def update(
    run: Run, rollouts: Rollouts, tokens: TokenBatch, weights: torch.Tensor, plan: list[MiniBatch]
) -> dict:
    """One optimiser step per mini-batch, on J = (1/N) Σ ρ min(r A, clip(r) A) (Eq. 8).

    J averages over the mini-batch's tokens. weights: ρ of the rollout batch. Returns metrics.
    """
    cfg, method = run.cfg, run.method
    sampler_logprob = tokens.sampler_logprob  # log π_sampler [N]
    off_policy = importance_weights(tokens.logprob, sampler_logprob, cfg.importance_cap)  # [N]
    device = tokens.logprob.device
    loss, clipped = torch.zeros(2, dtype=torch.float64, device=device)  # read only at the end
    norms = []
    length = rollouts.response_length
    # This rank's micro-batches to train on. An `index` holds the indices [b] of its responses.
    trained = [index for mini_batch in plan for index in mini_batch.trained]
    progress = Progress("update", sum(int(length[index].sum()) for index in trained))
    for mini_batch in plan:
        # Skip the micro-batches of responses with advantage 0: Eq. 8 gives them no gradient. A term
        # on every token, such as a KL penalty, needs mini_batch.micro_batches here instead.
        micro_batches = mini_batch.trained
        if not micro_batches:
            continue  # every advantage is 0, on all ranks, so there is no direction (App. C)

        N = mini_batch.token_count  # in Eq. 8: the mini-batch's tokens on all ranks
        for i, index in enumerate(micro_batches):
            places = uploaded(packed_rows(index, length), device)  # [n] rows of their tokens
            logprob = run.policy.rows(rollouts, index).logprob  # [n] log π_θ, with its gradient
            old_logprob = tokens.logprob[places]
            advantage = tokens.advantage[places]
            weight = weights[places]  # ρ; λ̄ with DelTA
            if method.follows_policy and len(index):  # a rank's last micro-batches may be empty
                weight = token_weights(method, tokens.part(index, logprob.detach()), cfg)  # ρ at θ

            # min(r A, clip(r) A), r = π_θ / π_old; SAPO and REINFORCE use other surrogates
            surrogate = method.surrogate(logprob, old_logprob, advantage, cfg)
            objective = (weight * off_policy[places] * surrogate).sum() / N  # Eq. 8
            run.policy.reduce_over_nodes(i == len(micro_batches) - 1)  # else only within a node
            (-objective * run.world).backward()  # FSDP averages over ranks; Eq. 8 sums

            loss -= objective.detach()
            if method.clips:
                clip = (cfg.clip_low, cfg.clip_high)
                silenced = clipped_tokens(logprob.detach(), old_logprob, advantage, *clip)
                clipped += silenced.sum()
            progress.update(len(places))

        norms.append(clip_and_step(run, cfg.max_grad_norm))
    progress.close()

    loss, clipped = sum_over_ranks(torch.stack([loss, clipped])).tolist()
    finite = [norm for norm in norms if math.isfinite(norm)]
    return {
        "loss": loss / len(plan),  # mini-batches without a step count as 0
        "grad_norm": sum(finite) / max(1, len(finite)),
        "clip_fraction": clipped / len(tokens.logprob),  # as a fraction of all N tokens
        "skipped_updates": len(norms) - len(finite),
    }


def clip_and_step(run: Run, max_grad_norm: float) -> float:
    """Clip the gradient to a global norm, step, zero the gradient. Returns the unclipped norm.

    An infinite or NaN norm skips the update. run.state.streak counts consecutive skipped updates,
    across steps; the third raises FloatingPointError.
    """
    norm = torch.nn.utils.clip_grad_norm_(run.policy.parameters(), max_grad_norm)
    norm = float(full_tensor(norm))
    if math.isfinite(norm):
        run.optimizer.step()
        run.state.streak = 0
    else:
        run.state.streak += 1
    run.optimizer.zero_grad()

    if run.state.streak == 3:
        raise FloatingPointError("the gradient norm was not finite in 3 updates in a row")
    return norm


def finish_step(run: Run) -> None:
    """Evaluate, log and save after a step, or on resume if the run stopped before doing so.

    If Interrupted is raised, run.state.unlogged holds the metrics to log on resume.
    """
    run.look_for_signals()
    cfg, metrics, step = run.cfg, run.state.unlogged, run.state.step
    if cfg.eval_data and (step % cfg.eval_every == 0 or step == cfg.steps):
        metrics = metrics | evaluate(run)
        if metrics["eval_accuracy"] > run.state.best:
            run.state.best = metrics["eval_accuracy"]
            export(run.folder / "best", run.policy, run.tokenizer, run.id)
    log(run, metrics)
    run.state.unlogged = {}
    if step % cfg.save_every == 0 or step == cfg.steps:
        run.save()


# ---- samples and rewards -------------------------------------------------------------------------


def sample(run: Run, step: int, watch: Stopwatch) -> tuple[Rollouts, list[dict], torch.Tensor, int]:
    """Sample and grade a rollout batch.

    Returns (rollouts of B responses, their B problems, rewards [B], the next position in the
    prompt stream). With --dynamic-sampling there are up to 10 rounds, until cfg.prompts groups
    have unequal rewards. If there are fewer, other groups fill the batch. Raises Interrupted.
    """
    cfg, G = run.cfg, run.cfg.group_size
    parts, problems, rewards = [], [], []
    position = run.state.position
    sampled = Counter()  # responses per problem, over all rounds
    sampling = Sampling(
        cfg.max_new_tokens, cfg.temperature, seed=cfg.seed, in_flight=cfg.rollout_rows
    )
    for _ in range(10 if cfg.dynamic_sampling else 1):
        chosen = draw_indices(len(run.problems), position, cfg.prompts, cfg.seed)
        position += cfg.prompts
        prompts = [run.prompts[i] for i in chosen]
        with run.sampler() as lm:  # the policy with its current weights, or --engine's copy
            part = rollout(
                lm, run.tokenizer, prompts, chosen, G, sampling, step, run.stopping, sampled
            )
        parts.append(part)
        watch.lap("sampling")

        asked = [run.problems[i] for i in chosen for _ in range(G)]
        problems += asked
        rewards += graded_once(training_rewards, part.texts, asked, part.truncated.tolist())
        watch.lap("grading")

        advantages = group_advantages(torch.tensor(rewards).float(), G)
        mixed = advantages.view(-1, G).any(dim=1)  # [groups] with unequal rewards
        if mixed.sum() >= cfg.prompts:
            break

    groups = torch.arange(len(mixed))
    if cfg.dynamic_sampling:
        groups = mixed.long().argsort(descending=True, stable=True)  # mixed groups first
    index = [g * G + i for g in groups[: cfg.prompts].tolist() for i in range(G)]
    rollouts = join(parts).pick(index)
    rewards = torch.tensor([rewards[i] for i in index])
    return rollouts, [problems[i] for i in index], rewards, position


def training_rewards(
    responses: list[str], problems: list[dict], truncated: list[bool]
) -> list[float]:
    """R for each response: its grade. Change the training reward here; evaluation is unaffected.

    Each response is graded on one rank and the result is shared, so rewards may be random.
    """
    return grades(responses, problems, truncated)


def evaluate(run: Run) -> dict[str, float]:
    """avg@n on the held-out problems: the mean grade of --eval-samples responses to each.

    --eval-greedy adds the mean grade of one greedy response to each problem. Sharpening alone
    cannot raise this grade.
    """
    cfg = run.cfg
    sampling = Sampling(
        cfg.max_new_tokens,
        cfg.temperature,
        cfg.eval_top_p,
        seed=cfg.seed,
        in_flight=cfg.rollout_rows,
    )
    with run.sampler() as lm:
        grades_of = partial(sample_grades, lm, run.tokenizer, run.held_out, run.held_out_prompts)
        sampled = grades_of(cfg.eval_samples, sampling, run.stopping)  # [P, n]
        metrics = {"eval_accuracy": float(sampled.mean())}
        if cfg.eval_greedy:
            greedy = grades_of(1, replace(sampling, temperature=0.0), run.stopping)  # [P, 1]
            metrics["eval_greedy"] = float(greedy.mean())
    return metrics


# ---- flags ---------------------------------------------------------------------------------------


@dataclass
class Config(AblationFlags, *TRAINING_GROUPS):
    """Every flag of a run, grouped as in --help. Most are defined in infra/training_flags.py."""


def parse_config(argv: list[str] | None = None) -> Config:
    """Each flag from the command line, else the toy's or the method's default, else the paper's.

    Raises UserError for flags that are unknown, out of range or contradictory.
    """
    return training_config(Config, METHODS, argv)


# ---- main ----------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> Path:
    """Run from the command line. A user error prints one line and exits with code 2."""
    with one_line_endings("train.py"):
        folder = train(parse_config(argv))
        end_ranks()
        return folder


if __name__ == "__main__":
    main()
