"""The defaults for train.py's flags with `--model toy` and `--model toy-code`."""

CHAINS = {
    "recompute": False,
    "steps": 160,
    "prompts": 16,
    "group_size": 8,
    "mini_batch": 4,
    "micro_batch_tokens": 4096,
    "lr": 1e-4,
    "max_new_tokens": 64,
    "max_prompt_tokens": 64,
    "eval_every": 20,
    "eval_samples": 1,
    "eval_top_p": 1.0,
    "eval_greedy": True,
    "save_every": 20,
    "data": "toy",
    "eval_data": "toy-held-out",
}
OF_PROGRAMS = {  # the defaults that are different with --model toy-code
    "steps": 100,
    "max_new_tokens": 32,
    "data": "toy-code",
    "eval_data": "toy-code-held-out",
}
TOYS = {"toy": CHAINS, "toy-code": CHAINS | OF_PROGRAMS}
