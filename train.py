"""The training loop of RLVR: sample, grade, advantages, log-probabilities, weights, loss, step.

`python train.py` trains the built-in toy model with DelTA on a laptop. `torchrun --nproc_per_node 8
train.py --model ID` trains a Hugging Face causal LM on any number of GPUs. config.py lists every
hyper-parameter. A run resumes from the newest checkpoint in its --output-dir. `train_step` is that
of minimal.py, for any model.

Departures from the paper's text: (1) weight decay 0.1 and gradient clip 1.0, as in the released
code; (2) no optimiser step for a mini-batch whose advantages are all 0; (3) evaluations in training
end at --max-new-tokens. From the released code: (4) the loss is divided by a mini-batch's token
count over all ranks, as in the text, not averaged over micro-batches.

Shapes: B responses per step, G per prompt, N packed response tokens, n of them in a micro-batch.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: waiting threads do not spin

import math
from dataclasses import replace
from pathlib import Path

import torch

from batch import MiniBatch, Rollout, TokenBatch, packed, plan_mini_batches
from config import Config, parse_config, selected_method
from grading import grade_all, grade_on_ranks, refuse_unmatchable
from grpo import group_advantages, overlong_penalty
from infra.errors import one_line_endings
from infra.log import introduce, log, print_summary
from infra.model_files import locate
from infra.problems import load_sets
from infra.progress import Progress, Stopwatch
from infra.ranks import computation_dtype, end_ranks, full_tensor, rank_and_world, sum_over_ranks
from infra.run import Run, export, start_ranks
from loading import load_policy
from methods import Method, checked_weights
from metrics import is_clipped, rollout_metrics, update_metrics, weight_metrics
from policy import Policy, old_log_probabilities
from rollout import SEED_STRIDE, Sampling, draw_indices, rollout
from toy.by_name import model_folder

# ---- the loop ------------------------------------------------------------------------------------


def train(cfg: Config) -> Path:
    """Run or resume what cfg describes. All ranks call this. Returns the output folder."""
    run = prepare(cfg)
    introduce(run)  # prints its size and first prompt
    with run.signals():
        if run.state.step == 0:
            evaluate_and_save(run, {})
        while run.state.step < cfg.steps:
            run.stop_after_signal()
            step = run.state.step + 1
            watch = Stopwatch()
            rollouts = sample(run, step, watch)
            metrics, tokens, weight = train_step(
                run.policy, run.optimizer, run.method, rollouts, cfg, step
            )
            metrics |= watch.seconds()
            metrics = run.finish_step(step, metrics, rollouts, tokens, weight)
            evaluate_and_save(run, metrics)

        export(run.folder / "model", run.policy, run.tokenizer)
        print_summary(run)  # with the gain in accuracy
    return run.folder


def prepare(cfg: Config) -> Run:
    """The run described by cfg, new or resumed. Cheap checks come first. Raises UserError."""
    start_ranks(cfg)
    folder, _, _ = locate(model_folder(cfg))  # the model's; reads no weights yet
    problems, held_out = load_sets(cfg)
    refuse_unmatchable(problems, f"--data {cfg.data}")  # golds; prints how many
    refuse_unmatchable(held_out, f"--eval-data {cfg.eval_data}")
    dtype = computation_dtype(cfg.dtype)
    policy, tokenizer = load_policy(folder, cfg.temperature, cfg.recompute, dtype)  # sharded
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, fused=True
    )
    run = Run(cfg, policy, tokenizer, optimizer, problems, held_out)
    run.open(dtype)  # claims --output-dir, and resumes from its newest checkpoint
    run.method = selected_method(cfg, run.state.memory)  # memory: for the ablation fixed_gamma
    return run


def train_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    method: Method,
    rollouts: list[Rollout],
    cfg: Config,
    step: int,
) -> tuple[dict, TokenBatch, torch.Tensor]:
    """One optimiser step per mini-batch of a rollout batch. All ranks call this.

    Returns (metrics, the packed tokens, their weights ρ [N]). Raises UserError.
    """
    watch = Stopwatch()
    # A_i = (R_i - mean) / std within each group, the same for all tokens of a response
    rewards = torch.tensor([response.reward for response in rollouts])  # [B]
    length = torch.tensor([len(response.tokens) for response in rollouts])  # [B]
    rewards += overlong_penalty(length, cfg.max_new_tokens, cfg.overlong_buffer)  # 0 by default
    advantages = group_advantages(rewards, cfg.group_size)  # [B]; exactly 0 for equal rewards

    # One pass at θ_old: log π_old of every token, and the rows v [N, F] that the method reads, for
    # DelTA (1 - p) h (App. L.1). The updates run the same micro-batches, so r is 1 in the first.
    size = cfg.mini_batch * cfg.group_size  # responses of an update
    plan = plan_mini_batches(  # this rank's micro-batches, equally many on every rank
        rollouts, advantages, size, cfg.micro_batch_tokens, policy.shares_prompts
    )
    old_logprob, entropy, v = old_log_probabilities(policy, plan, method.features)
    tokens = packed(
        rollouts, rewards=rewards, advantages=advantages, old_logprob=old_logprob, entropy=entropy
    )
    watch.lap("old_logprob")

    # ρ [N], the method's weight of every token, fixed during the updates; for DelTA λ̄, by
    # delta.delta_coefficients(v, A). Random weights have a seed of their own in each step.
    weight = checked_weights(method, tokens, v, replace(cfg, seed=SEED_STRIDE * cfg.seed + step))
    del v  # frees its memory
    watch.lap("weighting")

    metrics = update(policy, optimizer, method, plan, tokens, weight, cfg)  # θ_old becomes θ
    watch.lap("updating")

    metrics |= rollout_metrics(rollouts, tokens) | weight_metrics(tokens, weight, cfg)
    return metrics | watch.seconds(), tokens, weight


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    method: Method,
    plan: list[MiniBatch],
    tokens: TokenBatch,
    weight: torch.Tensor,
    cfg: Config,
) -> dict:
    """One optimiser step per mini-batch, on J = (1/n) Σ ρ min(r A, clip(r) A) (Eq. 8).

    n: tokens in the mini-batch, on all ranks. tokens: the rollout batch, N of them. weight: ρ [N],
    of mean 1 over these: for DelTA λ̄ = λ N / Z (delta.normalise). Returns metrics.
    """
    _, world = rank_and_world()
    totals = torch.zeros(2, dtype=torch.float64, device=weight.device)  # loss, clipped tokens
    norms = []
    count = sum(len(x.token_index) for mini_batch in plan for x in mini_batch.with_advantage())
    progress = Progress("update", count)
    for mini_batch in plan:
        if not mini_batch.with_advantage():
            continue  # every advantage is 0, on all ranks alike: there is no direction (App. C)

        for micro in mini_batch.with_advantage():
            own = tokens.select(micro)  # its n tokens
            logprob = policy(micro.ids, micro.mask).logprob  # [n] log π_θ, with its gradient

            # min(r A, clip(r) A) with r = π_θ / π_old; SAPO and REINFORCE have other surrogates
            surrogate = method.surrogate(logprob, own, cfg)  # [n]
            objective = (weight[micro.token_index] * surrogate).sum() / mini_batch.token_count
            (-objective * world).backward()  # FSDP averages over ranks; Eq. 8 sums

            clipped = is_clipped(method, logprob, own, cfg).sum()
            totals += torch.stack([-objective.detach(), clipped])
            progress.update(len(own))

        norms.append(clip_and_step(policy, optimizer, cfg.max_grad_norm))
    progress.close()

    loss, clipped = sum_over_ranks(totals).tolist()
    return update_metrics(loss, clipped, norms, len(plan), len(tokens))


def clip_and_step(policy: Policy, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> float:
    """Clip the gradient, step unless it is infinite or NaN, zero it. Returns the unclipped norm."""
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    norm = float(full_tensor(norm))
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return norm


def evaluate_and_save(run: Run, metrics: dict) -> None:
    """Evaluate, log and save the newest step, which has these metrics; step 0 has none."""
    cfg, step = run.cfg, run.state.step
    if cfg.eval_data and (step % cfg.eval_every == 0 or step == cfg.steps):
        metrics = metrics | evaluate_held_out(run)
        if step > 0 and metrics["eval_accuracy"] > run.best:
            run.best = metrics["eval_accuracy"]
            export(run.folder / "best", run.policy, run.tokenizer)
    if metrics:
        log(run, {"step": step, **metrics})
    if step % cfg.save_every == 0 or step == cfg.steps:
        run.save()


# ---- samples and rewards -------------------------------------------------------------------------


def sample(run: Run, step: int, watch: Stopwatch) -> list[Rollout]:
    """A step's rollout batch: B graded responses to the next problems."""
    cfg = run.cfg
    chosen = draw_indices(len(run.problems), cfg.prompts * (step - 1), cfg.prompts, cfg.seed)
    return graded_groups(run, chosen, step, watch)


def graded_groups(run: Run, chosen: list[int], step: int, watch: Stopwatch) -> list[Rollout]:
    """G graded responses o ~ π_old to each problem in `chosen`: R = 1 if it is right, else 0."""
    cfg, G = run.cfg, run.cfg.group_size
    sampling = Sampling(cfg.max_new_tokens, cfg.temperature, seed=cfg.seed, in_flight=cfg.in_flight)
    prompts = [run.prompts[i] for i in chosen]
    with run.policy.sampler() as lm:  # the policy's current weights
        responses = rollout(lm, run.tokenizer, prompts, chosen, G, sampling, step)
    watch.lap("sampling")
    problems = [run.problems[i] for i in chosen for _ in range(G)]  # of each response
    rewards = grade_on_ranks(responses, problems, grade_all)  # training's; evaluation keeps it
    watch.lap("grading")
    graded = zip(responses, problems, rewards, strict=True)
    return [Rollout(*response, problem, reward) for response, problem, reward in graded]


def evaluate_held_out(run: Run) -> dict[str, float]:
    """avg@n on the held-out problems; --eval-greedy adds the accuracy of greedy responses.

    Every call uses the random numbers of step 0, so that two evaluations differ only in the model.
    """
    cfg = run.cfg
    limits = {"seed": cfg.seed, "in_flight": cfg.in_flight}
    drawn = Sampling(cfg.max_new_tokens, cfg.temperature, cfg.eval_top_p, **limits)
    passes = [("eval_accuracy", cfg.eval_samples, drawn)]
    if cfg.eval_greedy:
        passes.append(("eval_greedy", 1, replace(drawn, temperature=0.0)))
    inputs = run.tokenizer, run.held_out_prompts, range(len(run.held_out))
    metrics = {}
    with run.policy.sampler() as lm:
        for name, n, sampling in passes:
            responses = rollout(lm, *inputs, n, sampling)
            problems = [problem for problem in run.held_out for _ in range(n)]
            rewards = grade_on_ranks(responses, problems)
            metrics[name] = sum(rewards) / len(rewards)
    return metrics


# ---- main ----------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> Path:
    """Run from the command line. A user error prints one line and exits with code 2."""
    with one_line_endings("train.py"):
        folder = train(parse_config(argv))
        end_ranks()
    return folder


if __name__ == "__main__":
    main()
