"""The training loop of RLVR: sample, reward, advantages, log-probabilities, weights, update, save.

`python train.py` trains the built-in toy model with DelTA on a laptop. `torchrun --nproc_per_node 8
train.py --model ID` trains a Hugging Face causal LM on any number of GPUs. config.py lists every
hyper-parameter. A run resumes from the newest checkpoint in its --output-dir. `train_step` takes
the same step as minimal.py's, on any number of ranks.

Training differs from the paper's text in three points. Weight decay is 0.1 and the gradient is
clipped at 1.0, as in the released code. A mini-batch whose advantages are all 0, or whose gradient
is not finite, gets no optimiser step. Evaluations in training end at --max-new-tokens. The released
code averages the loss over micro-batches; here, as in the text, it is divided by a mini-batch's
token count over all ranks.

Shapes: B responses per step, G per prompt, N packed response tokens; N_b of them in a mini-batch, b
responses with n tokens in a micro-batch. L columns of the longest sequence, H hidden size, V
vocabulary size, F features per token.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read as torch loads: waiting threads sleep

import copy
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import nll_loss
from torch.utils.checkpoint import checkpoint

import config
import grpo
import methods
from infra import head, loading, micro_batches, progress, ranks, shared_prompts
from infra.errors import one_line_endings
from infra.grading import grade_on_ranks
from infra.metrics import rollout_metrics, weight_metrics
from infra.model_files import locate
from infra.problems import load_sets
from infra.rows import Rows
from infra.run import Run
from rollout import Response, problems_of_step, rollout

# ---- the loop ------------------------------------------------------------------------------------


def train(cfg: config.Config) -> Path:
    """Run or resume what cfg describes. All ranks call this. Returns the output folder."""
    run = prepare(cfg)  # prints its size and first prompt
    with run.signals():
        if run.state.step == 0:
            evaluate_and_save(run, {})
        while run.state.step < cfg.steps:
            run.stop_after_signal()
            step = run.state.step + 1
            watch = progress.Stopwatch()  # of the stages of this step
            rollouts = sample(run, step, watch)
            metrics, tokens, rho = train_step(
                run.policy, run.optimizer, run.method, rollouts, cfg, step, watch
            )
            run.state.step = step
            run.save_samples(rollouts, tokens, rho)  # at step 1 and each --eval-every
            run.stop_if_diverged(metrics)
            evaluate_and_save(run, metrics | watch.seconds())

        run.finish()  # exports the model, prints the gain in accuracy, and ends the ranks
    return run.folder


def prepare(cfg: config.Config) -> Run:
    """The run described by cfg, new or resumed. Cheap checks come first. Raises UserError."""
    ranks.start_ranks()
    folder, _, _ = locate(cfg.model, cfg.toy_regime)  # reads no weights yet
    problems, held_out = load_sets(**cfg.sets)  # refuses gold answers that no response can match
    dtype = loading.computation_dtype(cfg.dtype)
    policy, tokenizer = load_policy(folder, cfg.temperature, cfg.recompute, dtype)
    optimizer = torch.optim.AdamW(  # after sharding: it must see the shards
        policy.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, fused=True
    )
    # Claims --output-dir, and resumes from its newest checkpoint.
    return Run(cfg, policy, tokenizer, optimizer, config.selected_method(cfg), problems, held_out)


# ---- the model -----------------------------------------------------------------------------------


class Policy(torch.nn.Module):
    """π_θ: a causal language model `lm` and the log-probabilities of its response tokens.

    The log-probabilities are computed in float32, in blocks of tokens, so no [n, V] tensor exists.
    With Qwen3's vocabulary it would take 12 GB for one response of 20,000 tokens. The Policy is
    FSDP's root, so inside `forward` the head's parameters are full tensors.

    FSDP shards `lm` and hangs hooks into it, which gather a layer's weights whenever it runs. For
    `generate`, whose every token runs every layer, a second tree of the same modules has no hooks:

        lm           hooks, this rank's shards      trains
        sampling_lm  no hooks, no weights           samples, when `unsharded` lends it lm's weights
    """

    def __init__(self, lm: torch.nn.Module, temperature: float = 1.0, sampling_lm=None):
        """sampling_lm: on the meta device; None if `lm` is not sharded, and samples, too."""
        super().__init__()
        self.lm = lm
        self.temperature = temperature
        self.sampling_lm = [sampling_lm or lm]  # a list, so its weights are no parameters

    def forward(self, ids: torch.Tensor, is_token: torch.Tensor) -> methods.TokenOutputs:
        """The outputs of the n tokens of is_token [b, L]; ids [b, L] are padded on the right."""
        token = ids[is_token]  # [n]
        hidden = shared_prompts.states(self.lm, ids, is_token)  # [n, H], one position before each

        # W is converted here, not per block, so autograd sums the blocks' gradients in float32.
        W_b = [x.float() for x in self.lm.get_output_embeddings().parameters()]  # W, or W and b
        size = head.block_size(ids.device, self.lm.config.vocab_size)  # tokens
        blocks = zip(hidden.split(size), token.split(size), strict=True)
        # The backward pass computes each block's logits again. A rank with n = 0 has one empty
        # block, so that its passes run too; its gradients are 0.
        outputs = [
            checkpoint(self.logprob_of_block, *block, *W_b, use_reentrant=False) for block in blocks
        ]
        columns = [torch.cat(column) for column in zip(*outputs, strict=True)]
        return methods.TokenOutputs(hidden.detach(), token, *columns)

    def logprob_of_block(
        self, hidden: torch.Tensor, token: torch.Tensor, *W_b: torch.Tensor
    ) -> list[torch.Tensor]:
        """[log p of the tokens], or without gradients, as at θ_old, [log p, entropy]."""
        logits = head.scaled_logits(hidden, W_b, self.lm.config, self.temperature)  # [block, V]
        logp = logits.log_softmax(dim=-1)
        del logits
        logprob = -nll_loss(logp, token, reduction="none")
        if torch.is_grad_enabled():  # the entropy would make an update longer
            return [logprob]
        entropy = -logp.exp().mul_(logp).sum(dim=1)  # a p of 0 has a finite log p
        return [logprob, entropy]

    @contextmanager
    def unsharded(self) -> Iterator[torch.nn.Module]:
        """sampling_lm with the full weights of `lm`. All ranks enter together."""
        shards = [module for module in self.modules() if isinstance(module, FSDPModule)]
        for module in shards:
            module.unshard()
        lm = self.sampling_lm[0]
        for plain, sharded in zip(lm.modules(), self.lm.modules(), strict=True):
            tensors = chain(
                sharded.named_parameters(recurse=False), sharded.named_buffers(recurse=False)
            )
            for name, tensor in tensors:  # whole, until reshard()
                setattr(plain, name, tensor)  # shared, not copied
        try:
            yield lm
        finally:
            for module in shards:
                module.reshard()  # frees the memory that `lm`'s tensors share


def load_policy(
    name: str | Path,
    temperature: float = 1.0,
    recompute: bool = True,
    dtype: torch.dtype = torch.float32,
) -> tuple[Policy, object]:
    """(sharded Policy, tokenizer). All ranks call this; only the first reads the weights.

    Weights, gradients and Adam moments are in float32, sharded over the ranks (FSDP2). name: folder
    or hub id. recompute: activation checkpointing per layer. dtype: of the computation. Raises
    UserError, for example if the policy differs from from_pretrained's model.
    """
    published = loading.published_model(name)
    lm = published.without_weights()  # on the meta device, without dropout
    sampling_lm = copy.deepcopy(lm)  # before `recompute`, which sampling does not need
    layers = loading.decoder_layers(lm)
    if recompute:
        for layer in layers:  # each stores only its input, and runs again in the backward pass
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)

    # FSDP has one unit per decoder layer; embedding, norm and head belong to the root.
    policy = Policy(lm, sampling_lm=sampling_lm)
    precision = MixedPrecisionPolicy()
    if dtype == torch.bfloat16:  # gradients are summed in float32
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for module in (*layers, policy):
        fully_shard(module, mp_policy=precision)
    published.give_slices(lm)  # each rank gets its shards; until here no tensor had memory

    # Raises if log p, at temperature 1, is in training or sampling not the published model's.
    published.check(policy, dtype)
    policy.temperature = temperature
    return policy, published.tokenizer


# ---- samples and rewards -------------------------------------------------------------------------


class Rollout(NamedTuple):
    """A graded response. The G responses to a problem are consecutive in a batch."""

    response: Response
    problem: dict  # from the data set: its text, and its answer or tests
    reward: float  # R


def sample(run: Run, step: int, watch: progress.Stopwatch) -> list[Rollout]:
    """A step's rollout batch: B graded responses to the next problems."""
    cfg = run.cfg
    chosen = problems_of_step(len(run.problems), step, cfg.prompts, cfg.seed)
    return graded_groups(run, chosen, step, watch)


def graded_groups(
    run: Run, chosen: list[int], step: int, watch: progress.Stopwatch
) -> list[Rollout]:
    """G graded responses o ~ π_old to each problem in `chosen`.

    R = 1 if a response is right, else 0; or what the function of --reward returns.
    """
    cfg = run.cfg
    asked = [i for i in chosen for _ in range(cfg.group_size)]  # [B]
    keys, sample_number = [], Counter()
    for i in asked:  # a key fixes random numbers; a problem chosen twice gets new responses
        keys.append((cfg.seed, step, i, sample_number[i]))
        sample_number[i] += 1
    with run.policy.unsharded() as lm:  # the policy's current weights
        prompts = [run.prompts[i] for i in asked]
        # The limits are max_new_tokens, in_flight and stop; top-p stays 1.
        drawn = {"temperature": cfg.temperature, **cfg.limits}
        responses = rollout(lm, run.tokenizer, prompts, keys, **drawn)
    watch.lap("sampling")
    problems = [run.problems[i] for i in asked]
    rewards = grade_on_ranks(responses, problems, cfg.reward)  # by verify.reward, tests or letters
    watch.lap("grading")
    return [Rollout(*graded) for graded in zip(responses, problems, rewards, strict=True)]


# ---- one step ------------------------------------------------------------------------------------


def train_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    method: methods.Method,
    rollouts: list[Rollout],
    cfg: config.Config,
    step: int,
    watch: progress.Stopwatch,
) -> tuple[dict, methods.TokenBatch, torch.Tensor]:
    """One optimiser step per mini-batch of a rollout batch. All ranks call this.

    Returns (metrics, the packed tokens, their weights ρ [N]). Raises UserError.
    """
    responses = [each.response for each in rollouts]
    length = torch.tensor([len(response.tokens) for response in responses])  # [B]
    penalty = grpo.overlong_penalty(length, cfg.max_new_tokens, cfg.overlong_buffer)  # [B] <= 0
    rewards = torch.tensor([each.reward for each in rollouts]) + penalty  # [B] R

    # A_i = (R_i - mean) / std within each group, the same for all tokens of a response
    advantages = grpo.group_advantages(rewards, cfg.group_size)  # [B]; exactly 0 for equal rewards
    advantage = advantages.repeat_interleave(length)  # [N]

    # One pass at θ_old gives log π_old of every token, and the rows v [N, F] that the method reads,
    # for DelTA (1 - p) h (App. L.1). The updates run the same micro-batches, so r is 1 at first.
    size = cfg.mini_batch * cfg.group_size  # responses per update
    # Each mini-batch holds this rank's micro-batches. In a micro-batch all responses have an
    # advantage, or none has. Every rank has equally many of either kind: FSDP runs in lockstep.
    plan = micro_batches.mini_batches(responses, advantage, size, cfg.micro_batch_tokens, policy.lm)
    old_logprob, entropy, v = pass_at_theta_old(policy, plan, method)
    tokens = methods.packed(  # of all ranks: A, log π_old and so on of N tokens, R of B responses
        responses, rewards, advantage, old_logprob, entropy, seed=(cfg.seed, step)
    )
    watch.lap("old_logprob")

    # ρ [N], the method's weight of every token, is fixed during the updates. For DelTA it is λ̄,
    # from delta.delta_coefficients(v, A).
    rho = method.checked_weights(tokens, v, cfg)
    del v  # frees its memory
    watch.lap("weighting")

    metrics = update(policy, optimizer, method, plan, tokens, rho, cfg)  # θ_old becomes θ
    watch.lap("updating")

    metrics |= rollout_metrics(rollouts, tokens) | weight_metrics(tokens, rho, cfg)
    return metrics, tokens, rho


@torch.no_grad()
def pass_at_theta_old(
    policy: Policy, plan: list[micro_batches.MiniBatch], method: methods.Method
) -> tuple[torch.Tensor, torch.Tensor, Rows | None]:
    """(log π_old [N], entropy [N], v or None), by one pass over the rollout batch.

    Each rank runs its own micro-batches, and every rank gets the results. The rows v [n, F]
    stay where they are computed: DelTA needs no further pass (App. L.1).
    """
    N = sum(mini_batch.token_count for mini_batch in plan)
    numbers = torch.zeros(2, N, device=policy.lm.device)  # log π_old, entropy
    v = Rows(N) if method.features else None

    @cache
    def gathered_head() -> torch.Tensor:
        """W / temperature [V, H], for proxies that read it; DelTA's own, (1 - p) h, does not."""
        return head.scaled_head(policy.lm, policy.temperature)

    for micro in progress.with_bar("old log p", [x for each in plan for x in each.micro_batches]):
        outputs = policy(micro.ids, micro.is_token)
        numbers[:, micro.token_index] = torch.stack([outputs.logprob, outputs.entropy])
        if method.features:
            v.add(micro.token_index, method.kept_features(outputs, gathered_head))  # [n, F]
    old_logprob, entropy = ranks.sum_over_ranks(numbers)  # other ranks' tokens are 0 here
    return old_logprob, entropy, v


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    method: methods.Method,
    plan: list[micro_batches.MiniBatch],
    tokens: methods.TokenBatch,
    rho: torch.Tensor,
    cfg: config.Config,
) -> dict:
    """One optimiser step per mini-batch, on J = (1/N_b) Σ ρ min(r A, clip(r) A) (Eq. 8).

    N_b: tokens in the mini-batch, on all ranks. tokens: the N tokens of the rollout batch. rho:
    ρ [N], for DelTA λ̄ = λ N / Z (delta.normalise), with mean 1. Returns metrics.
    """
    world = torch.distributed.get_world_size()
    totals = torch.zeros(2, dtype=torch.float64, device=rho.device)  # loss, clipped tokens
    norms = []
    for mini_batch in plan:
        # Every rank has equally many of them; on some ranks one may be empty, n = 0.
        active = [micro for micro in mini_batch.micro_batches if micro.has_advantage]
        if not active:
            continue  # every advantage is 0, on all ranks alike: there is no direction (App. C)

        for micro in progress.with_bar("update", active):
            of_micro = tokens.select(micro)  # n of the N tokens
            logprob = policy(micro.ids, micro.is_token).logprob  # [n] log π_θ, with its gradient

            # grpo.clipped_surrogate, min(r A, clip(r) A) with r = π_θ / π_old, for most methods
            surrogate = method.surrogate(logprob, of_micro, cfg)  # [n]
            objective = (rho[micro.token_index] * surrogate).sum() / mini_batch.token_count
            (-objective * world).backward()  # FSDP averages over ranks; Eq. 8 sums

            clipped = method.is_clipped(logprob, of_micro, cfg).sum()
            totals += torch.stack([-objective.detach(), clipped])

        norms.append(clip_and_step(policy, optimizer, cfg.max_grad_norm))

    loss, clipped = ranks.sum_over_ranks(totals).tolist()
    finite = [norm for norm in norms if math.isfinite(norm)]
    return {
        "loss": loss / len(plan),  # 0 for a mini-batch without an update
        "grad_norm": sum(finite) / max(1, len(finite)),  # before clipping
        "clip_fraction": clipped / len(tokens),
        "updates": len(finite),
        "skipped_updates": len(norms) - len(finite),
    }


def clip_and_step(policy: Policy, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> float:
    """Clip the gradient, step unless it is infinite or NaN, zero it. Returns the unclipped norm."""
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    norm = norm.full_tensor().item()  # of the shards of all ranks
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return norm


# ---- evaluate and save ---------------------------------------------------------------------------


def evaluate_and_save(run: Run, metrics: dict) -> None:
    """Evaluate, log and save after the newest step. metrics: its metrics; step 0 has none."""
    cfg, step = run.cfg, run.state.step
    is_best = False
    if cfg.eval_data and (step % cfg.eval_every == 0 or step == cfg.steps):
        metrics = metrics | evaluate_held_out(run)
        is_best = run.is_best(metrics[cfg.eval_metric])
    if metrics:
        run.log(metrics)
    if is_best or step % cfg.save_every == 0 or step == cfg.steps:
        run.save()
    if is_best:  # after the checkpoint: a resumed run knows the model in best/
        run.keep_best()


def evaluate_held_out(run: Run) -> dict[str, float]:
    """avg@n on the held-out problems; --eval-greedy adds the mean reward of greedy responses.

    Every call uses the random numbers of step 0, so that two evaluations differ only in the model.
    """
    cfg = run.cfg
    passes = [(cfg.eval_metric, cfg.eval_samples, cfg.temperature)]
    if cfg.eval_greedy:
        passes.append(("eval_greedy", 1, 0.0))
    metrics = {}
    with run.policy.unsharded() as lm:
        for name, n, temperature in passes:
            asked = [i for i in range(len(run.held_out)) for _ in range(n)]
            keys = [(cfg.seed, 0, i, j % n) for j, i in enumerate(asked)]
            prompts = [run.held_out_prompts[i] for i in asked]
            drawn = {"temperature": temperature, "top_p": cfg.eval_top_p, **cfg.limits}
            responses = rollout(lm, run.tokenizer, prompts, keys, **drawn)
            rewards = grade_on_ranks(responses, [run.held_out[i] for i in asked], cfg.reward)
            metrics[name] = sum(rewards) / len(rewards)
    return metrics


# ---- main ----------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> Path:
    """Run from the command line. A user error prints one line and exits with code 2."""
    with one_line_endings("train.py"):
        return train(config.parse_config(argv))


if __name__ == "__main__":
    main()
