"""Makes data/real_text.npz: a model's responses to two problems, both with right and wrong ones.

    $ python notebooks/real_text.py "the model, its licence; the data's licence" --model MODEL \\
          --data FILE --prompts 16 --group-size 8 --max-new-tokens 256 --output-dir NEW

The flags are train.py's. The committed file also has V of prefixes (measured by commit e9d0cb0).
"""

import sys
from datetime import date
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import train
from batch import packed, plan_mini_batches
from config import parse_config
from grpo import group_advantages
from infra.progress import Stopwatch
from policy import old_log_probabilities

FILE = Path(__file__).resolve().parent / "data" / "real_text.npz"


def write(about: str, problems: list[str], words: list[str], tokens, hidden, G: int) -> None:
    """The two shortest mixed problems of a batch: a batch.TokenBatch, words [N], hidden [N, H]."""
    of_group, R = tokens.length.view(-1, G).sum(dim=1), tokens.reward.view(-1, G)
    mixed = [g for g in of_group.argsort().tolist() if R[g].std() > 0]
    kept = torch.tensor([g * G + j for g in sorted(mixed[:2]) for j in range(G)])
    some = torch.isin(torch.arange(len(R) * G), kept).repeat_interleave(tokens.length)  # [N]
    table = {"advantage": tokens.advantage, "logprob": tokens.old_logprob}
    table |= {"entropy": tokens.entropy, "hidden": hidden.half()}
    table = {name: of_tokens[some].numpy() for name, of_tokens in table.items()}
    table |= {"length": tokens.length[kept].numpy(), "rewards": tokens.reward[kept].numpy()}
    table |= {"words": np.array(words)[some.numpy()], "problems": np.array(problems)[kept]}
    np.savez_compressed(FILE, about=f"{about}; {date.today()}", values=np.zeros((0, 3)), **table)
    print(f"{FILE}: {len(kept)} responses, {int(some.sum())} tokens, {FILE.stat().st_size:,} bytes")


def main(about: str, *flags: str) -> None:
    run = train.prepare(parse_config(["--mini-batch", "1", *flags, "--eval-data", ""]))
    rollouts, _ = train.sample(run, 1, Stopwatch())
    rewards = torch.tensor([rollout.reward for rollout in rollouts])
    A, G = group_advantages(rewards, run.cfg.group_size), run.cfg.group_size
    plan = plan_mini_batches(rollouts, A, len(rollouts), run.cfg.micro_batch_tokens)
    passed = old_log_probabilities(run.policy, plan, lambda outputs, head: outputs.hidden)
    of_tokens = dict(zip(("old_logprob", "entropy"), passed, strict=False))
    tokens = packed(rollouts, rewards=rewards, advantages=A, **of_tokens)
    hidden = torch.cat([part.float() for _, part in passed[2].parts])
    hidden[torch.cat([index for index, _ in passed[2].parts])] = hidden.clone()
    words = [run.tokenizer.decode([token]) for token in tokens.token.tolist()]
    write(about, [x.problem["problem"] for x in rollouts], words, tokens, hidden, G)


if __name__ == "__main__":
    main(*sys.argv[1:])
