"""Compares TRL's trainer with our token weights with TRL's own, and with our loop, on any ranks.

    torchrun --nproc_per_node 2 tests/engines/trl_worker.py FILE

writes the numbers of `compared` to FILE.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent.parent.parent))  # for the project's imports below

import numpy as np
import torch
from datasets import Dataset
from torch import distributed as dist
from trl import GRPOTrainer
from trl.scripts import grpo

import toy
from config import Config, selected_method
from grpo import group_advantages
from infra.micro_batches import mini_batches
from infra.ranks import end_ranks, from_all_ranks, rank_and_world
from methods import packed
from rollout import Response
from train import Policy, pass_at_theta_old
from trl_delta import WeightedTrainer, right

G = 8  # responses per problem
WEIGHTS = [
    *({"method": name} for name in ("dapo", "forking_tokens", "grpo")),
    *({"proxy": name} for name in ("scalar", "centred", "row", "topk", "exact_gradient")),
    {"delta_variant": "random"},
]  # without --select, where rounding would choose among tokens that are nearly equal
TIMES = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "step_time"}
TOY = f"""
    --reward_funcs trl_delta.right --num_generations {G} --max_completion_length 64
    --gradient_accumulation_steps 1 --gradient_checkpointing false --lr_scheduler_type constant
    --use_cpu true --bf16 false --report_to none --save_strategy no --logging_steps 1
    --disable_tqdm true
"""  # flags of `trl grpo`
TWICE = f"""
    --per_device_train_batch_size {32 // int(os.environ.get("WORLD_SIZE", 1))}
    --steps_per_generation 2 --num_iterations 2 --max_steps 4 --learning_rate 3e-3
"""  # two updates per generation batch and two passes over it, so ratios leave the clip's range


def trainer_of(
    kind: type, model: Path | str, weights: Config | None = None, more: str = "", reward=right
):
    """A trainer on the toy's problems. weights: WeightedTrainer's. more: flags of `trl grpo`."""
    flags = [*(TOY + TWICE + more).split(), "--output_dir", tempfile.mkdtemp()]
    config = grpo.make_parser().parse_args_and_config(flags)[1]
    problems = toy.problems(32, k=5) + toy.problems(32, k=3)  # prompts of two lengths
    rows = [{"prompt": each["problem"], "solution": each["answer"]} for each in problems]
    data = Dataset.from_list(rows)
    named = {"cfg": weights} if weights else {}
    return kind(model=str(model), reward_funcs=reward, args=config, train_dataset=data, **named)


def metrics(trainer) -> list[dict]:
    """What the trainer logged, without times."""
    return [{name: row[name] for name in row.keys() - TIMES} for row in trainer.state.log_history]


def compared() -> dict:
    """Compares token weights in [1, 1] with TRL's own run, and ρ of two batches with our loop's.

    In the second batch the rewards are 0.1 and 0.3, where TRL's A is not 0 for equal rewards.
    """
    theirs = trainer_of(GRPOTrainer, toy.BASES["sharpen"])
    theirs.train()
    ones = trainer_of(WeightedTrainer, toy.BASES["sharpen"], Config(lam_min=1.0, lam_max=1.0))
    ones.train()
    pairs = zip(theirs.model.parameters(), ones.model.parameters(), strict=True)
    fresh = trainer_of(WeightedTrainer, toy.BASES["sharpen"], Config())  # still earns rewards
    fresh.model.train()
    examples = next(iter(fresh.get_train_dataloader()))
    unlike, advantages = [], []
    for fresh.reward_funcs in ([right], [tenths]):
        torch.manual_seed(rank_and_world()[0])  # the same responses for both
        batch = GRPOTrainer._generate_and_score_completions(fresh, examples)
        # leaves out last tokens
        batch["tool_mask"] = torch.roll(batch["completion_mask"], -1, dims=1)
        advantages.append(on_all_ranks(batch["advantages"].tolist()))
        unlike.append([share_unlike(fresh, batch, weights) for weights in WEIGHTS])
    return {
        "same_metrics": metrics(ones) == metrics(theirs),
        "same_parameters": all(torch.equal(a, b) for a, b in pairs),
        "rewards": [row["reward"] for row in metrics(theirs) if "reward" in row],
        "unlike": unlike,
        "advantages": advantages,  # TRL's
    }


def tenths(completions: list[str], solution: list[str], **_) -> list[float]:
    """0.3 for a right answer, else 0.1."""
    return [0.3 if reward else 0.1 for reward in right(completions, solution)]


def share_unlike(trainer, batch: dict, weights: dict) -> float:
    """The share of tokens whose ρ A from the trainer and from our own loop differ, on one batch.

    Our loop computes its own A, which is 0 for equal rewards; elsewhere TRL's differs by its ε. If
    a method keeps only some tokens, rounding may swap tokens of equal priority.
    """
    cfg = Config(**weights, group_size=G)
    trainer.cfg, trainer.method = cfg, selected_method(cfg)
    with patch.object(GRPOTrainer, "_generate_and_score_completions", lambda *_: dict(batch)):
        weighted = trainer._generate_and_score_completions([])["advantages"]  # [B, T]

    mine = rollouts_of(batch)
    rollouts, trls = on_all_ranks(mine), torch.tensor(on_all_ranks(batch["advantages"].tolist()))
    (rewards,) = (torch.tensor(list(newest)) for newest in trainer._logs["rewards"].values())
    length = torch.tensor([len(each.tokens) for each in rollouts])
    advantage = group_advantages(rewards, G).repeat_interleave(length)  # [N]
    plan = mini_batches(rollouts, advantage, len(rollouts), 4096)
    old = pass_at_theta_old(Policy(trainer.model), plan, trainer.method)
    tokens = packed(
        rollouts,
        rewards=rewards,
        advantage=advantage,
        old_logprob=old[0],
        entropy=old[1],
        seed=(0, trainer.args.seed + trainer.state.global_step),
    )
    rho = trainer.method.checked_weights(tokens, old[2], cfg)
    expected = rho * trls.repeat_interleave(length) * (advantage != 0)  # [N]
    first = rank_and_world()[0] * len(mine)
    span = slice(tokens.span(first).start, tokens.span(first + len(mine) - 1).stop)
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    apart = (weighted[mask] - expected[span]).abs()
    return float((apart > 1e-3).float().mean())


def rollouts_of(batch: dict) -> list[Response]:
    """The responses in one of TRL's batches, without padding."""
    sides = []
    for side in ("prompt", "completion"):
        masks = batch[f"{side}_mask"] * (batch["tool_mask"] if side == "completion" else 1)
        rows = zip(batch[f"{side}_ids"], masks.bool(), strict=True)
        sides.append([row[mask].tolist() for row, mask in rows])
    return [
        Response(prompt, np.array(tokens, dtype=np.int32), np.full(len(tokens), np.nan), "", False)
        for prompt, tokens in zip(*sides, strict=True)
    ]


def on_all_ranks(mine: list) -> list:
    """The lists of all ranks, joined in the order of the ranks."""
    shares = from_all_ranks(mine) if dist.is_initialized() else [mine]
    return [each for share in shares for each in share]


def main() -> None:
    result = compared()
    if rank_and_world()[0] == 0:
        Path(sys.argv[1]).write_text(json.dumps(result))
    end_ranks()


if __name__ == "__main__":
    main()
