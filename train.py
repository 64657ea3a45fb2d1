"""The training loop of RLVR: sample, grade, advantages, log-probabilities, weights, loss, step.

`python train.py` trains the built-in toy model with DelTA on a laptop. `torchrun --nproc_per_node 8
train.py --model ID` trains a Hugging Face causal LM on any number of GPUs. config.py lists every
hyper-parameter. A run resumes from the newest checkpoint in its --output-dir. minimal.py has the
same algorithm on one page.

Departures from the paper's text: (1) weight decay 0.1 and gradient clip 1.0, as in the released
code; (2) no optimiser step for a mini-batch whose advantages are all 0; (3) evaluations during
training are limited to --max-new-tokens, while evaluate.py uses the paper's 30,000. Departure from
the released code: (4) the loss is divided by a mini-batch's token count over all ranks, as in the
text, not averaged over micro-batches.

Shapes: B responses per step, G per prompt, N packed response tokens, n of them in a micro-batch.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: waiting threads do not spin

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

from batch import MiniBatch, Rollout, TokenBatch, packed, plan_mini_batches
from config import Config, parse_config, selected_method
from grading import grade_all, grade_on_ranks, report_unearnable
from grpo import group_advantages, importance_weights, overlong_penalty
from infra.errors import one_line_endings
from infra.log import (
    introduce,
    log,
    refuse_mismatch,
    report,
    report_equal_rewards,
    rollout_metrics,
    save_samples,
)
from infra.model_files import locate
from infra.problems import load_sets
from infra.progress import Progress, Stopwatch
from infra.ranks import computation_dtype, end_ranks, full_tensor, sum_over_ranks, this_device
from infra.run import Run, export, saved_on_signal, start
from loading import load_policy
from methods import Method, checked_weights, is_clipped, ones, weight_metrics
from policy import old_log_probabilities
from rollout import SEED_STRIDE, Sampling, draw_indices, rollout
from toy.by_name import model_folder

# ---- the loop ------------------------------------------------------------------------------------


def train(cfg: Config) -> Path:
    """Run or resume what cfg describes. All ranks call this. Returns the output folder."""
    run = prepare(cfg)
    method = selected_method(cfg, run.state.memory)
    with saved_on_signal(run):
        introduce(run)  # prints its size and first prompt
        finish_step(run)  # evaluates before step 1; on resume, finishes an interrupted step
        while run.state.step < cfg.steps:
            train_step(run, method, run.state.step + 1)
            finish_step(run)

        export(run.folder / "model", run.policy, run.tokenizer)
        report(run)  # prints the gain in accuracy
    return run.folder


def prepare(cfg: Config) -> Run:
    """The run described by cfg, new or resumed. Cheap checks come first. Raises UserError."""
    start(cfg)  # the ranks
    model, _, _ = locate(model_folder(cfg))  # a folder; reads no weights yet
    problems, held_out = load_sets(cfg)
    report_unearnable(problems, f"--data {cfg.data}")  # counts golds that nothing can match
    report_unearnable(held_out, f"--eval-data {cfg.eval_data}")
    dtype = computation_dtype(cfg.dtype)
    policy, tokenizer = load_policy(model, cfg.temperature, cfg.recompute, dtype)  # sharded
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, fused=True
    )
    run = Run(cfg, policy, tokenizer, optimizer, problems, held_out)
    run.open(dtype)  # claims --output-dir, and resumes from its newest checkpoint
    return run


def train_step(run: Run, method: Method, step: int) -> None:
    """One rollout batch, and one optimiser step per mini-batch."""
    cfg = run.cfg
    watch = Stopwatch()

    # o_i ~ π_old, G responses per prompt, and R_i = 1 if the final answer is right, else 0
    rollouts, position = sample(run, step, watch)
    rewards = torch.tensor([response.reward for response in rollouts])  # [B]
    length = torch.tensor([len(response.tokens) for response in rollouts])  # [B]
    rewards += overlong_penalty(length, cfg.max_new_tokens, cfg.overlong_buffer)  # 0 by default

    # A_i = (R_i - mean) / std within each group, the same for all tokens of a response
    advantages = group_advantages(rewards, cfg.group_size)  # [B]

    # log π_old of every token, and the method's features of the hidden states (App. L.1): for DelTA
    # the proxies v [N, H]. The updates run the same micro-batches, so the first update's r is 1.
    plan = plan_mini_batches(  # this rank's micro-batches, equally many on every rank
        rollouts, advantages, cfg.mini_batch * cfg.group_size, cfg.micro_batch_tokens
    )
    old_logprob, entropy, features = old_log_probabilities(run.policy, plan, method.features)
    run.look_for_signals()  # raises Interrupted after a signal
    watch.lap("old_logprob")

    # ρ [N], the method's weight for every token: λ̄ for DelTA. It stays fixed during the updates.
    # One seed per step, for random weights and ties; rollout.py has the run's other streams.
    seed = SEED_STRIDE * cfg.seed + step
    tokens = packed(rollouts, rewards, advantages, old_logprob, entropy, features, seed)
    weight = checked_weights(method, tokens, cfg)
    tokens = replace(tokens, features=None)
    del features  # frees their memory
    watch.lap("weighting")

    metrics = update(run, method, plan, tokens, weight)  # θ_old becomes θ
    watch.lap("updating")

    metrics |= rollout_metrics(rollouts, tokens)
    if method.weights is not ones:  # else every ρ is 1
        metrics |= weight_metrics(tokens, weight, cfg)
    refuse_mismatch(run, metrics["mismatch"])  # --engine vllm only; raises before the step counts
    run.state.step = step
    run.state.position = position
    run.state.metrics = metrics | watch.seconds()  # finish_step logs them
    if step == 1 or step % cfg.eval_every == 0:
        save_samples(run, step, rollouts, tokens, weight)
    if step == 3:
        report_equal_rewards(run, rollouts)  # should differ by now; else prints a cause


def update(
    run: Run, method: Method, plan: list[MiniBatch], tokens: TokenBatch, weight: torch.Tensor
) -> dict:
    """One optimiser step per mini-batch, on J = Σ ρ min(r A, clip(r) A) / token_count (Eq. 8).

    Responses with A = 0 are skipped (batch.MiniBatch). tokens: the rollout batch.
    weight: ρ [N], which --importance-cap multiplies. Returns metrics.
    """
    cfg = run.cfg
    off_policy = importance_weights(tokens.logprob, tokens.sampler_logprob, cfg.importance_cap)
    weight = weight * off_policy  # [N]
    loss = torch.zeros((), dtype=torch.float64, device=this_device())  # read once, at the end
    clipped = torch.zeros_like(loss)
    norms = []
    count = sum(len(micro.token_index) for part in plan for micro in part.with_gradient)
    progress = Progress("update", count)
    for mini_batch in plan:
        if not mini_batch.with_gradient:
            continue  # every advantage is 0, on all ranks alike: there is no direction (App. C)

        for micro in mini_batch.with_gradient:
            own = tokens.select(micro)  # its n tokens
            logprob = run.policy(micro.ids, micro.mask).logprob  # [n] log π_θ, with its gradient

            # min(r A, clip(r) A), r = π_θ / π_old; SAPO and REINFORCE use other surrogates
            surrogate = method.surrogate(logprob, own, cfg)
            objective = (weight[micro.token_index] * surrogate).sum() / mini_batch.token_count
            (-objective * run.world).backward()  # FSDP averages over ranks; Eq. 8 sums

            loss -= objective.detach()
            if method.clip_range is not None:  # else the surrogate has no clip
                clipped += is_clipped(method, logprob, own, cfg).sum()
            progress.update(len(own))

        norms.append(clip_and_step(run, cfg.max_grad_norm))
    progress.close()

    loss, clipped = sum_over_ranks(torch.stack([loss, clipped])).tolist()
    finite = [norm for norm in norms if math.isfinite(norm)]
    return {
        "loss": loss / len(plan),  # mini-batches without a step count as 0
        "grad_norm": sum(finite) / max(1, len(finite)),
        "clip_fraction": clipped / len(tokens),  # as a fraction of all N tokens
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
    """Evaluate, log and save the newest step, unless metrics.jsonl has it. Raises Interrupted."""
    cfg, step, metrics = run.cfg, run.state.step, run.state.metrics
    if step <= run.logged:
        return
    run.look_for_signals()
    if cfg.eval_data and (step % cfg.eval_every == 0 or step == cfg.steps):
        metrics = metrics | evaluate(run)
        if step > 0 and metrics["eval_accuracy"] > run.best:
            run.best = metrics["eval_accuracy"]
            export(run.folder / "best", run.policy, run.tokenizer)
    if metrics:  # none without an evaluation before step 1
        log(run, {"step": step, **metrics})
    if step % cfg.save_every == 0 or step == cfg.steps:
        run.save()


# ---- samples and rewards -------------------------------------------------------------------------


def sample(run: Run, step: int, watch: Stopwatch) -> tuple[list[Rollout], int]:
    """Sample and grade a rollout batch: (B rollouts, the next position in the prompt stream).

    With --dynamic-sampling there are up to 10 rounds, until cfg.prompts groups have unequal
    rewards. If there are fewer, other groups fill the batch. Raises Interrupted.
    """
    cfg, G = run.cfg, run.cfg.group_size
    rollouts = []
    position = run.state.position
    sample_numbers = Counter()  # problem -> its next sample number; rollout() advances it
    sampling = Sampling(cfg.max_new_tokens, cfg.temperature, seed=cfg.seed, in_flight=cfg.in_flight)
    for _ in range(10 if cfg.dynamic_sampling else 1):
        chosen = draw_indices(len(run.problems), position, cfg.prompts, cfg.seed)
        position += cfg.prompts
        prompts = [run.prompts[i] for i in chosen]
        with run.sampler() as lm:  # the policy with its current weights, or --engine's copy
            new = rollout(
                lm, run.tokenizer, prompts, chosen, G, sampling, step, run.stopping, sample_numbers
            )
        watch.lap("sampling")
        problems = [run.problems[i] for i in chosen for _ in range(G)]  # of each response
        rewards = grade_on_ranks(new, problems, grade_all)  # or with another reward function
        for response, problem, reward in zip(new, problems, rewards, strict=True):
            rollouts.append(response._replace(problem=problem, reward=reward))
        watch.lap("grading")

        groups = [rollouts[first : first + G] for first in range(0, len(rollouts), G)]
        mixed = [group for group in groups if has_unequal_rewards(group)]
        if len(mixed) >= cfg.prompts:
            break

    if cfg.dynamic_sampling:  # mixed groups first; the sort is stable
        groups.sort(key=has_unequal_rewards, reverse=True)
    return [response for group in groups[: cfg.prompts] for response in group], position


def has_unequal_rewards(group: list[Rollout]) -> bool:
    """Whether the rewards differ, before the overlong penalty."""
    rewards = torch.tensor([response.reward for response in group])
    return bool((rewards != rewards[0]).any())


def evaluate(run: Run) -> dict[str, float]:
    """avg@n on the held-out problems; --eval-greedy adds the accuracy of greedy responses.

    Every call uses the random numbers of step 0, so that two evaluations differ only in the model.
    All ranks call this. Raises Interrupted once any rank received a signal to stop.
    """
    cfg = run.cfg
    sampling = Sampling(
        cfg.max_new_tokens, cfg.temperature, cfg.eval_top_p, seed=cfg.seed, in_flight=cfg.in_flight
    )
    settings = {"eval_accuracy": (cfg.eval_samples, sampling)}
    if cfg.eval_greedy:
        settings["eval_greedy"] = (1, replace(sampling, temperature=0.0))
    problem_ids = range(len(run.held_out))
    metrics = {}
    with run.sampler() as lm:
        for name, (n, of) in settings.items():
            prompts = run.held_out_prompts
            found = rollout(lm, run.tokenizer, prompts, problem_ids, n, of, stop=run.stopping)
            problems = [problem for problem in run.held_out for _ in range(n)]
            rewards = grade_on_ranks(found, problems)
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
