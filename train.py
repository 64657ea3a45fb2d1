"""The training loop of RLVR: sample, grade, advantages, log-probabilities, weights, loss, step.

`python train.py` trains the built-in toy model with DelTA on a laptop. `torchrun --nproc_per_node 8
train.py --model ID` trains a Hugging Face causal LM on any number of GPUs. `Config` lists every
hyper-parameter: the defaults are the paper's (App. I), with --model toy those of toy/presets.py. A
run resumes from the newest checkpoint in its --output-dir. minimal.py has the same algorithm on one
page.

Departures from the paper's text: (1) weight decay 0.1 and gradient clip 1.0, as in the released
code; (2) no optimiser step for a mini-batch whose advantages are all 0; (3) evaluations during
training are limited to --max-new-tokens, while evaluate.py uses the paper's 30,000. Departure from
the released code: (4) the loss is divided by a mini-batch's token count over all ranks, as in the
text, not averaged over micro-batches.

Shapes: B responses per step, G per prompt, N packed response tokens, n of them in a micro-batch.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import ablations
from ablations import AblationFlags
from batch import MiniBatch, Rollout, TokenBatch, packed, plan_mini_batches
from grading import graded, grades, report_unearnable
from grpo import clipped_tokens, group_advantages, importance_weights, overlong_penalty
from infra.errors import UserError, one_line_endings
from infra.flags import Parser, flag, listed, refuse_useless
from infra.log import introduce, log, report, rollout_metrics, save_samples
from infra.model_files import locate
from infra.problems import load_sets
from infra.progress import Progress, Stopwatch
from infra.ranks import end_ranks, full_tensor, sum_over_ranks, this_device
from infra.run import Run, export, running, start
from loading import load_policy
from methods import METHODS, Method, token_weights
from policy import old_log_probabilities
from rollout import SEED_STRIDE, Sampling, draw_indices, rollout
from toy.by_name import model_folder
from toy.presets import TOYS

# ---- hyper-parameters ----------------------------------------------------------------------------


@dataclass
class Config(AblationFlags):
    """Every flag of a run; methods.py and ablations.py define those of the token weights.

    The defaults are the paper's (App. I); "ours" marks one that the paper does not state. The
    `free` flags may change when a run resumes.
    """

    prompts: int = flag(128, "prompts per step", low=1)
    group_size: int = flag(16, "responses per prompt, G", low=2)
    max_new_tokens: int = flag(20480, "longest response, tokens", low=1)
    temperature: float = flag(1.0, "for sampling and log-probabilities", above=0)
    dynamic_sampling: bool = flag(False, "replace groups that have equal rewards with new prompts")
    overlong_buffer: int = flag(0, "last tokens, where the reward falls (released: 4096)", low=0)

    steps: int = flag(220, "rollout batches (the paper's 14B: 300)", low=1, free=True)
    mini_batch: int = flag(32, "prompts per update; prompts / mini-batch updates per step", low=1)
    lr: float = flag(1e-6, "AdamW learning rate, constant", above=0)
    weight_decay: float = flag(0.1, "AdamW weight decay (released code)", low=0)
    max_grad_norm: float = flag(1.0, "gradient clipping by global norm (released code)", above=0)
    importance_cap: float = flag(
        0.0, "C: weight by min(π_old / π_sampler, C); 0: off (ours)", low=0
    )

    model: str = flag("toy", "`toy`, `toy-code`, a local Hugging Face folder or a hub id")
    data: str = flag("deepmath", "a known name, a hub id, a .jsonl, .csv or .parquet file")
    problem_column: str = flag("problem", "problem column, for a set without a known name")
    answer_column: str = flag("answer", "answer column, for a set without a known name")
    prompt_template: str = flag("", "a prompt with {problem} in it; default: the chat template")
    max_prompt_tokens: int = flag(2048, "longer prompts are dropped", low=1)
    seed: int = flag(0, "for sampling and data order", low=0, high=10**12)  # * SEED_STRIDE < 2^63

    eval_data: str = flag("aime25", "evaluation problems; they select the best model; empty: none")
    eval_every: int = flag(10, "steps between evaluations (ours)", low=1, free=True)
    eval_samples: int = flag(8, "responses per evaluation problem, the n of avg@n", low=1)
    eval_top_p: float = flag(0.7, "top-p in evaluation", above=0, high=1)
    eval_greedy: bool = flag(False, "also evaluate one greedy response per problem (ours)")

    # Memory. All but the engine change the results only through rounding, which in bfloat16 changes
    # most responses: see rollout.py.
    micro_batch_tokens: int = flag(24576, "max tokens in a forward pass (ours)", low=1, free=True)
    recompute: bool = flag(True, "recompute activations in the backward pass (ours)", free=True)
    in_flight: int = flag(256, "max responses that a rank samples at once (ours)", low=1, free=True)
    engine: str = flag("generate", "sampler (docs/running.md)", choices=["generate", "vllm"])

    output_dir: str = flag("", "default: runs/<model>-<method>-<seed>", free=True)
    save_every: int = flag(10, "steps between checkpoints (ours)", low=1, free=True)
    track: str = flag("", "also log to this module, such as wandb or trackio", free=True)

    toy_regime: str = flag("learn", "the base's errors", ["learn", "learn-minus", "sharpen"])
    toy_k: int = flag(5, "operations in a problem", low=1)
    toy_noise: float = flag(0.1, "share of errors in the base's demonstrations", low=0, high=1)
    toy_filler: int = flag(1, "number of connectives that open a step", low=0)
    toy_zipf: bool = flag(False, "248 Zipf-distributed connectives, not eight equally likely")


NO_EFFECT = (
    *ablations.NO_EFFECT,
    (("clip_low", "clip_high"), "method", [name for name in METHODS if not METHODS[name].clips]),
    (("toy_regime", "toy_k", "toy_noise", "toy_filler", "toy_zipf"), "model", ["toy-code"]),
)


def parse_config(argv: list[str] | None = None) -> Config:
    """Each flag from the command line, else the toy's or the method's default, else the paper's.

    Raises UserError for flags that are unknown, out of range, without effect or contradictory.
    """
    epilog = ". ".join(f"With --model {name}: {listed(of)}" for name, of in TOYS.items())
    parser = Parser(Config, "train.py", "RLVR with DelTA and other token weights.", epilog)
    given, _ = parser.parse_known_args(argv)
    method = METHODS[given.method]
    parser.set_defaults(**TOYS.get(given.model, {}))
    if method.clips:
        parser.set_defaults(clip_low=method.default_clip[0], clip_high=method.default_clip[1])
    cfg = Config(**vars(parser.parse_args(argv)))

    cfg.model = str(Path(cfg.model))  # without a trailing slash
    cfg.output_dir = cfg.output_dir or f"runs/{Path(cfg.model).name}-{cfg.method}-{cfg.seed}"
    refuse_useless(cfg, NO_EFFECT)
    if cfg.lam_min > cfg.lam_max:
        raise UserError(f"--lam-min {cfg.lam_min} is above --lam-max {cfg.lam_max}")
    if cfg.delta_variant == "no_centroids" and cfg.proxy in ("topk", "exact"):
        raise UserError("--delta-variant no_centroids needs --proxy centred or surprise")
    if 0 < cfg.importance_cap < 1:
        raise UserError(f"--importance-cap {cfg.importance_cap} must be 0 or at least 1")
    if cfg.prompts % cfg.mini_batch:
        raise UserError(f"--prompts {cfg.prompts} is no multiple of --mini-batch {cfg.mini_batch}")
    return cfg


# ---- the loop ------------------------------------------------------------------------------------


def train(cfg: Config, method: Method | None = None) -> Path:
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
            finish_step(run)

        export(run.folder / "model", run.policy, run.tokenizer)
        report(run)
    return run.folder


def prepare(cfg: Config, method: Method | None = None) -> Run:
    """The run described by cfg, new or resumed. Cheap checks come first. Raises UserError."""
    method = method or ablations.configured(METHODS[cfg.method], cfg)
    start(cfg)  # the ranks
    model, _, _ = locate(model_folder(cfg))  # its files; reads no weights yet
    problems, held_out = load_sets(cfg)
    policy, tokenizer = load_policy(model, cfg.temperature, cfg.recompute)  # sharded over the ranks
    ablations.check_model(cfg, policy)
    optimizer = torch.optim.AdamW(  # another may lack `fused` for sharded parameters
        policy.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, fused=True
    )
    # Claims --output-dir, and loads its newest checkpoint if there is one.
    run = Run(cfg, method, policy, tokenizer, optimizer, problems, held_out)
    report_unearnable(run.problems + run.held_out)
    return run


def train_step(run: Run, step: int) -> None:
    """One rollout batch, and one optimiser step per mini-batch."""
    cfg, method = run.cfg, run.method
    watch = Stopwatch()

    # o_i ~ π_old, G responses per prompt, and R_i = 1 if the final answer is right, else 0
    rollouts, position = sample(run, step, watch)
    rewards = torch.tensor([each.reward for each in rollouts])  # [B]
    length = torch.tensor([len(each.tokens) for each in rollouts])  # [B]

    # A_i = (R_i - mean) / std within each group, the same for all tokens of a response
    penalty = overlong_penalty(length, cfg.max_new_tokens, cfg.overlong_buffer)
    advantages = group_advantages(rewards + penalty, cfg.group_size)  # [B]
    batch = packed(rollouts, advantages, cfg.group_size)  # a TokenBatch: N tokens
    batch.generator.manual_seed(SEED_STRIDE * cfg.seed + step)  # for random methods
    batch.memory = run.state.memory

    # log π_old of every token, and the method's `keep` applied to the hidden states (App. L.1).
    # The updates run the same micro-batches, so the first ratio is exactly 1.
    plan = plan_mini_batches(
        rollouts, advantages, cfg.mini_batch * cfg.group_size, cfg.micro_batch_tokens
    )
    old_log_probabilities(run.policy, plan, batch, method.keep)
    run.look_for_signals()  # raises Interrupted after a signal
    watch.lap("old_logprob")

    # ρ, the method's weight for every token: λ̄ for DelTA. It stays fixed during the updates
    # (Eq. 8), unless method.follows_policy.
    batch.weight = token_weights(method, batch, cfg)
    batch.kept = None  # frees the hidden states before the update
    watch.lap("weighting")

    of_updates = update(run, plan, batch)  # θ_old becomes θ
    watch.lap("updating")

    run.state.step = step
    run.state.position = position
    run.state.unlogged = {
        "step": step,
        **of_updates,
        **rollout_metrics(rollouts, batch),
        **watch.seconds(),
    }
    if step == 1 or step % cfg.eval_every == 0:
        save_samples(run, step, rollouts, batch)


def update(run: Run, plan: list[MiniBatch], batch: TokenBatch) -> dict:
    """One optimiser step per mini-batch, on J = Σ ρ min(r A, clip(r) A) / count (Eq. 8).

    count: the mini-batch's tokens. batch: the rollout batch, with ρ. Returns metrics.
    """
    cfg, method = run.cfg, run.method
    off_policy = importance_weights(batch.logprob, batch.sampler_logprob, cfg.importance_cap)  # [N]
    loss, clipped = torch.zeros(
        2, dtype=torch.float64, device=this_device()
    )  # read once, at the end
    norms = []
    trained = [micro for mini_batch in plan for micro in mini_batch.trained]
    progress = Progress("update", sum(len(micro.places) for micro in trained))
    for mini_batch in plan:
        # Skip the micro-batches of responses with advantage 0: Eq. 8 gives them no gradient. A term
        # on every token, such as a KL penalty, needs mini_batch.micro_batches here instead.
        if not mini_batch.trained:
            continue  # every advantage is 0, on all ranks, so there is no direction (App. C)

        count = mini_batch.token_count  # tokens on all ranks, those with A = 0 too
        for micro in mini_batch.trained:
            tokens = batch.of(micro)  # its n tokens: log π_old, A and ρ, which is λ̄ with DelTA
            logprob = run.policy(micro.ids, micro.mask).logprob  # [n] log π_θ, with its gradient
            if method.follows_policy and len(tokens):  # a rank's last micro-batches may be empty
                tokens.current = logprob.detach()
                tokens.weight = token_weights(method, tokens, cfg)  # ρ at θ

            # min(r A, clip(r) A), r = π_θ / π_old; SAPO and REINFORCE use other surrogates
            surrogate = method.surrogate(logprob, tokens.logprob, tokens.advantage, cfg)
            objective = (tokens.weight * off_policy[micro.places] * surrogate).sum() / count
            (-objective * run.world).backward()  # FSDP averages over ranks; Eq. 8 sums

            loss -= objective.detach()
            if method.clips:
                at_theta = (logprob.detach(), tokens.logprob, tokens.advantage)
                clipped += clipped_tokens(*at_theta, cfg.clip_low, cfg.clip_high).sum()
            progress.update(len(tokens))

        norms.append(clip_and_step(run, cfg.max_grad_norm))
    progress.close()

    loss, clipped = sum_over_ranks(torch.stack([loss, clipped])).tolist()
    finite = [norm for norm in norms if math.isfinite(norm)]
    return {
        "loss": loss / len(plan),  # mini-batches without a step count as 0
        "grad_norm": sum(finite) / max(1, len(finite)),
        "clip_fraction": clipped / len(batch),  # as a fraction of all N tokens
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
            export(run.folder / "best", run.policy, run.tokenizer)
    log(run, metrics)
    run.state.unlogged = {}
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
    sampled = Counter()  # responses per problem, over all rounds
    sampling = Sampling(cfg.max_new_tokens, cfg.temperature, seed=cfg.seed, in_flight=cfg.in_flight)
    for _ in range(10 if cfg.dynamic_sampling else 1):
        chosen = draw_indices(len(run.problems), position, cfg.prompts, cfg.seed)
        position += cfg.prompts
        prompts = [run.prompts[i] for i in chosen]
        with run.sampler() as lm:  # the policy with its current weights, or --engine's copy
            part = rollout(
                lm, run.tokenizer, prompts, chosen, G, sampling, step, run.stopping, sampled
            )
        watch.lap("sampling")
        asked = [run.problems[i] for i in chosen for _ in range(G)]
        rollouts += graded(part, asked, training_rewards)
        watch.lap("grading")

        groups = [rollouts[first : first + G] for first in range(0, len(rollouts), G)]
        mixed = [group for group in groups if has_unequal_rewards(group)]
        if len(mixed) >= cfg.prompts:
            break

    if cfg.dynamic_sampling:  # mixed groups first; the sort is stable
        groups.sort(key=has_unequal_rewards, reverse=True)
    return [each for group in groups[: cfg.prompts] for each in group], position


def has_unequal_rewards(group: list[Rollout]) -> bool:
    """Whether the rewards differ, before the overlong penalty."""
    rewards = torch.tensor([each.reward for each in group])
    return bool((rewards != rewards[0]).any())


def training_rewards(
    responses: list[str], problems: list[dict], truncated: list[bool]
) -> list[float]:
    """R for each response: its grade. Change the training reward here; evaluation is unaffected.

    Each response is graded on one rank and the result is shared, so rewards may be random.
    """
    return grades(responses, problems, truncated)


def evaluate(run: Run) -> dict[str, float]:
    """The accuracy on the held-out problems, with --eval-samples responses to each.

    --eval-greedy adds the accuracy of greedy responses. It changes only if a likeliest token does.
    """
    cfg = run.cfg
    limits = {"seed": cfg.seed, "in_flight": cfg.in_flight}
    sampling = Sampling(cfg.max_new_tokens, cfg.temperature, cfg.eval_top_p, **limits)
    asked = (run.tokenizer, run.held_out, run.held_out_prompts)
    with run.sampler() as lm:
        metrics = {"eval_accuracy": accuracy(lm, *asked, cfg.eval_samples, sampling, run.stopping)}
        if cfg.eval_greedy:
            greedy = replace(sampling, temperature=0.0)
            metrics["eval_greedy"] = accuracy(lm, *asked, 1, greedy, run.stopping)
    return metrics


def accuracy(lm, tokenizer, problems, prompts, samples, sampling, stop=None) -> float:
    """avg@n: the mean grade of `samples` responses to each problem. All ranks call this.

    Every call uses the same random numbers, those of step 0, so that two evaluations differ only in
    the model. Raises Interrupted once stop() is true on any rank.
    """
    rollouts = rollout(lm, tokenizer, prompts, range(len(prompts)), samples, sampling, stop=stop)
    asked = [problem for problem in problems for _ in range(samples)]
    rewards = [each.reward for each in graded(rollouts, asked)]
    return sum(rewards) / len(rewards)


# ---- main ----------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> Path:
    """Run from the command line. A user error prints one line and exits with code 2."""
    with one_line_endings("train.py"):
        folder = train(parse_config(argv))
        end_ranks()
        return folder


if __name__ == "__main__":
    main()
