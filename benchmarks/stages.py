"""The stages of a training step of DelTA, each callable separately, on scripted responses.

Shapes: B responses, N packed response tokens.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import train
from benchmarks.scripted import END_TOKEN, GROUP, sampled, scripted_jobs
from grpo import group_advantages
from infra.checkpoints import RunState
from infra.packing import TokenBatch, padded_rollouts, plan_mini_batches
from infra.policy import Policy, old_log_probabilities
from infra.ranks import start_ranks
from methods import METHODS


def stages(
    policy: Policy,
    length: int,
    responses: int,
    mini_batches: int,
    micro_batch_tokens: int,
    trains: bool = True,
) -> dict[str, Callable[[], object]]:
    """name -> function for each stage of a step, in order; callable in any order, repeatedly.

    The step has `responses` responses of `length` tokens, GROUP per prompt, half of them right.
    trains: include the update.
    """
    start_ranks()
    prompts = responses // GROUP
    flags = f"--prompts {prompts} --group-size {GROUP} --mini-batch {prompts // mini_batches}"
    run = bare_run(policy, train.parse_config(flags.split()))

    def sampling() -> list[np.ndarray]:
        with policy.plain() as lm:
            return sampled(lm, [length] * responses)

    asked = [job.prompt for job in scripted_jobs(responses)]
    rollouts = padded_rollouts(asked, sampling(), [""] * responses, [END_TOKEN], policy.lm.device)
    rewards = torch.arange(responses).remainder(2).float()
    advantages = group_advantages(rewards, GROUP)  # [B]
    plan = plan_mini_batches(rollouts, advantages, responses // mini_batches, micro_batch_tokens)

    def old_logprobs() -> TokenBatch:
        return old_log_probabilities(policy, rollouts, plan, run.method.keep)

    tokens = old_logprobs().completed(advantages)

    def coefficients() -> torch.Tensor:
        return run.method.weights(tokens, run.cfg)  # [N]

    weights = coefficients()

    def update() -> dict:
        return train.update(run, rollouts, tokens, weights, plan)

    functions = {"sampling": sampling, "old_logprobs": old_logprobs, "coefficients": coefficients}
    if trains:
        functions["update"] = update
    return functions


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
