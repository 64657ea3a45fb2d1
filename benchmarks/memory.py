"""RESULTS.md's table of what Qwen3-0.6B to 14B need of 1, 4 and 8 GPUs (`python bench.py memory`).

Counted by infra/memory.py for the paper's settings (App. I), not measured.
"""

import train
from infra.memory import GB, QWEN3, plan, qwen3

GPU_GB = 80

HEADER = """\
| Qwen3 | parameters | GPUs | rollout, GB (responses in flight at the longest) | log-probs, GB \
| update, GB | fits 80 GB |
|---|---|---|---|---|---|---|"""


def memory(args) -> None:
    """Print the table; `args` are bench.py's, of which it needs none."""
    config = train.parse_config(["--model", "Qwen/Qwen3"])
    print(HEADER)
    for size in QWEN3:
        for world in (1, 4, 8):
            p = plan(
                qwen3(size),
                world,
                GPU_GB,
                config.micro_batch_tokens,
                config.max_prompt_tokens,
                config.max_new_tokens,
                config.prompts * config.group_size,
                config.rollout_rows,
                config.proxy_budget_gb,
                top_p=config.eval_top_p,
            )
            fits = "yes" if p.fits(GPU_GB) else "no"
            print(
                f"| {size} | {p.parameters / 1e9:.2f} billion | {world} "
                f"| {p.rollout / GB:.0f} ({p.in_flight}) | {p.old_logprobs / GB:.0f} "
                f"| {p.update / GB:.0f} | {fits} |"
            )
