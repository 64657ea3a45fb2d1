"""The stages of a training step of DelTA, each callable separately, on scripted responses.

Shapes: B responses, N packed response tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import train
from benchmarks.scripted import END_TOKEN, GROUP, sampled, scripted_jobs
from grpo import group_advantages
from infra.checkpoints import RunState
from infra.packing import MiniBatch, Rollouts, TokenBatch, pack, plan_mini_batches
from infra.policy import Policy, old_log_probabilities
from infra.ranks import start_ranks
from methods import METHODS


@dataclass
class Step:
    """A training step. Its stages are methods, callable in any order and repeatedly."""

    run: train.Run
    length: int  # of each response, tokens
    rollouts: Rollouts
    plan: list[MiniBatch]
    tokens: TokenBatch | None = None
    weights: torch.Tensor | None = None  # [N]

    def sampling(self) -> list[np.ndarray]:
        with self.run.policy.plain() as lm:
            return sampled(lm, [self.length] * len(self.rollouts))

    def old_logprobs(self) -> TokenBatch:
        keep = self.run.method.keep
        return old_log_probabilities(self.run.policy, self.rollouts, self.plan, keep)

    def coefficients(self) -> torch.Tensor:
        return self.run.method.weights(self.tokens, self.run.cfg)  # [N]

    def update(self) -> dict:
        return train.update(self.run, self.rollouts, self.tokens, self.weights, self.plan)


def prepared_step(
    policy: Policy, length: int, responses: int, mini_batches: int, micro_batch_tokens: int
) -> Step:
    """A step on `responses` responses of `length` tokens, GROUP per prompt, every second one right.

    The inputs of every stage are already computed.
    """
    start_ranks()
    prompts = responses // GROUP
    flags = f"--prompts {prompts} --group-size {GROUP} --mini-batch {prompts // mini_batches}"
    cfg = train.parse_config(flags.split())

    device = policy.lm.device
    lengths = [length] * responses
    with policy.plain() as lm:
        sequences = sampled(lm, lengths)
    asked = [job.prompt for job in scripted_jobs(responses)]
    rollouts = pack(asked, sequences, [""] * responses, [END_TOKEN], device)

    rewards = torch.arange(responses).remainder(2).float()
    advantages = group_advantages(rewards, GROUP)  # [B]
    plan = plan_mini_batches(rollouts, advantages, responses // mini_batches, micro_batch_tokens)

    step = Step(bare_run(policy, cfg), length, rollouts, plan)
    step.tokens = step.old_logprobs().completed(advantages)
    step.weights = step.coefficients()
    return step


def bare_run(policy: Policy, cfg: train.Config) -> train.Run:
    """A run of DelTA with only a policy and an optimiser, which is all that train.update needs.

    AdamW allocates its moments at the first update, so an untrained model needs no memory for them.
    """
    return train.Run(
        cfg=cfg,
        id="",
        method=METHODS["delta"],
        folder=Path(cfg.output_dir),
        rank=0,
        world=1,
        policy=policy,
        tokenizer=None,
        optimizer=torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=True),
        state=RunState(),
        problems=[],
        prompts=[],
        held_out=[],
        held_out_prompts=[],
    )


def stages(step: Step, trains: bool = True) -> dict[str, Callable[[], object]]:
    """name -> function of each stage, in the order of a step. trains: include the update."""
    functions = {
        "sampling": step.sampling,
        "old_logprobs": step.old_logprobs,
        "coefficients": step.coefficients,
    }
    if trains:
        functions["update"] = step.update
    return functions
