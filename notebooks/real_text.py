"""Makes data/real_text.npz: a model's responses to two problems, both with right and wrong ones.

    $ python notebooks/real_text.py "the model, its licence; the data's licence" --model MODEL \\
          --data FILE --prompts 16 --group-size 8 --max-new-tokens 256

The flags are minimal.py's. The committed file also has V of prefixes (measured by commit e9d0cb0).
"""

import sys
from datetime import date
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import minimal

FILE = Path(__file__).resolve().parent / "data" / "real_text.npz"


def write(about: str, problems: list[str], rewards, length, of_tokens: dict, G: int) -> None:
    """The two shortest mixed problems of a batch. problems, rewards, length: of responses [B].

    of_tokens: words, advantage, logprob, entropy [N] and hidden [N, H].
    """
    of_group, R = length.view(-1, G).sum(dim=1), rewards.view(-1, G)
    mixed = [g for g in of_group.argsort().tolist() if R[g].std() > 0]
    kept = torch.tensor([g * G + j for g in sorted(mixed[:2]) for j in range(G)])
    some = torch.isin(torch.arange(len(rewards)), kept).repeat_interleave(length).numpy()  # [N]
    table = {name: np.array(values)[some] for name, values in of_tokens.items()}
    table |= {"length": length[kept].numpy(), "rewards": rewards[kept].numpy()}
    table |= {"problems": np.array(problems)[kept]}
    np.savez_compressed(FILE, about=f"{about}; {date.today()}", values=np.zeros((0, 3)), **table)
    print(f"{FILE}: {len(kept)} responses, {some.sum()} tokens, {FILE.stat().st_size:,} bytes")


@torch.no_grad()
def main(about: str, *flags: str) -> None:
    cfg = minimal.parse_flags(list(flags))
    lm, tokenizer, problems, _ = minimal.load(cfg)
    chosen = range(cfg.prompts)
    rollouts = minimal.sample(lm, tokenizer, problems, chosen, cfg)
    logprob, hidden = minimal.token_outputs(lm, rollouts.ids, rollouts.is_token, cfg.micro_batch)
    parts = [lm.get_output_embeddings()(h).float().log_softmax(dim=1) for h in hidden.split(256)]
    entropy = torch.cat([-(logp.exp() * logp).sum(dim=1) for logp in parts])
    length = rollouts.is_token.sum(dim=1).cpu()
    A = minimal.group_advantages(rollouts.rewards, cfg.group_size).cpu().repeat_interleave(length)
    words = [tokenizer.decode([token]) for token in rollouts.ids[rollouts.is_token].tolist()]
    of_tokens = {"words": words, "advantage": A, "logprob": logprob.cpu()}
    of_tokens |= {"entropy": entropy.cpu(), "hidden": hidden.half().cpu()}
    asked = [problems[i]["problem"] for i in chosen for _ in range(cfg.group_size)]
    write(about, asked, rollouts.rewards.cpu(), length, of_tokens, cfg.group_size)


if __name__ == "__main__":
    main(*sys.argv[1:])
