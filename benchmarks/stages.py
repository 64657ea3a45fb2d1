"""The stages of a training step of DelTA, each callable separately, on scripted responses.

Shapes: B responses, N packed response tokens.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import train
from batch import Rollout, packed, plan_mini_batches
from benchmarks.scripted import END_TOKEN, GROUP, sampled, scripted_jobs
from grpo import group_advantages
from infra.ranks import start_ranks
from infra.run import RunState
from methods import METHODS
from policy import Policy, old_log_probabilities


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

    rollouts = []
    for job, tokens in zip(scripted_jobs(responses), sampling(), strict=True):
        unknown = np.full(len(tokens), np.nan, dtype=np.float32)
        rollouts.append(Rollout(job.prompt, tokens, unknown, "", tokens[-1] != END_TOKEN))
    rewards = torch.arange(responses).remainder(2).float()
    advantages = group_advantages(rewards, GROUP)  # [B]
    sizes = (responses // mini_batches, micro_batch_tokens, policy.lm.device)
    plan = plan_mini_batches(rollouts, advantages, *sizes)

    tokens = packed(rollouts, advantages, policy.lm.device)

    def old_logprobs() -> None:
        old_log_probabilities(policy, plan, tokens, run.method.keep)

    old_logprobs()

    def coefficients() -> torch.Tensor:
        return run.method.weights(tokens, run.cfg)  # [N]

    tokens.weight = coefficients()

    def update() -> dict:
        return train.update(run, plan, tokens)

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
