"""Makes data/real_text.npz: a real model's right and wrong responses to two problems.

    $ python -m benchmarks credit --model MODEL --data FILE --prompts 16 --group-size 8 \\
          --mini-batch 16 --max-new-tokens 256 --output-dir RUN --csv RUN.csv
    $ python notebooks/real_text.py RUN "name of the model, its licence; the data's licence"

The second command takes the two problems with mixed rewards and the fewest tokens. It leaves out
the longest responses to the second while the states need more than LIMIT bytes. With the CSV of
`python -m benchmarks branches <the same flags>` as a third argument, the file has V of prefixes.
"""

import csv
import datetime
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a batch holds objects of batch.py
FILE = Path(__file__).resolve().parent / "data" / "real_text.npz"
LIMIT = 4_700_000  # bytes of hidden states


def chosen(batch: dict) -> list[int]:
    """The indices of the responses that are kept, problem by problem."""
    G, width = batch["G"], 2 * batch["hidden"].shape[1]  # bytes of a float16 state
    tokens = batch["length"].view(-1, G).sum(dim=1)
    R = torch.tensor([response.reward for response in batch["rollouts"]]).view(-1, G)
    mixed = [g for g in tokens.argsort().tolist() if R[g].std() > 0]
    first, second = ([g * G + j for j in range(G)] for g in mixed[:2])
    second.sort(key=lambda i: int(batch["length"][i]))
    while width * int(batch["length"][first + second].sum()) > LIMIT:
        second.pop()
    return sorted(first + second)


def main(run: str, about: str, values: str = "") -> None:
    batch = torch.load(Path(run) / "batch.pt", weights_only=False)
    kept, length = chosen(batch), batch["length"]
    is_kept = torch.isin(torch.arange(len(length)), torch.tensor(kept))  # [B]
    some = is_kept.repeat_interleave(length)  # [N]
    table = {name: batch[name][some].numpy() for name in ("advantage", "logprob", "entropy")}
    table["hidden"] = batch["hidden"][some].half().numpy()
    table["words"] = np.array(batch["texts"])[some.numpy()]
    table["length"] = length[kept].numpy()
    rollouts = [batch["rollouts"][i] for i in kept]
    table["rewards"] = np.array([rollout.reward for rollout in rollouts], dtype=np.float32)
    table["problems"] = np.array([rollout.problem["problem"] for rollout in rollouts])
    rows = csv.DictReader(Path(values).read_text().splitlines() if values else [])
    own = [row for row in rows if int(row["response"]) in kept]
    places = [(kept.index(int(x["response"])), int(x["start"]), float(x["value"])) for x in own]
    table["values"] = np.array(sorted(places), dtype=np.float32).reshape(-1, 3)
    np.savez_compressed(FILE, about=f"{about}; {datetime.date.today()}", **table)
    print(f"{FILE}: {len(kept)} responses, {int(some.sum())} tokens, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
