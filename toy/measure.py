"""Measures the committed base models before training: `python -m toy.measure`.

    python -m toy.measure                                  all of them, as a table
    python -m toy.measure learn-k5-noise0.1-filler1-seed0  only this one
    python -m toy.measure --bases FOLDER                   bases in another folder

Every base answers 512 held-out problems (256 for programs). The columns:

tokens       per response, including the end token
accuracy     share of right responses at temperature 1, 16 per problem
greedy       share of right greedy responses
pass@16      share of problems with a right response among the 16
entropy      of the sampling distribution in nats, mean over tokens
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from toy import code_task, task
from toy.base import BASES, load_base
from toy.build import COMMITTED
from toy.code_base import code_base_name
from toy.tokenizer import TOKEN_ID

SAMPLES = 16
LONGEST = 256  # at most this many tokens per response


def measured(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: list[str],
    is_right: Callable[[str, str], bool],
) -> dict[str, float]:
    """Column -> value. The sampled tokens depend on torch's random state."""
    prompts = tokenizer(problems, padding=True, return_tensors="pt")
    width = prompts.input_ids.shape[1]
    prompts = {"input_ids": prompts.input_ids, "attention_mask": prompts.attention_mask}

    def graded(responses: torch.Tensor) -> torch.Tensor:
        texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
        rights = [is_right(*each) for each in zip(problems, texts, strict=True)]
        return torch.tensor(rights, dtype=torch.float32)  # [P]

    greedy = model.generate(**prompts, do_sample=False, max_new_tokens=LONGEST)
    rights, lengths, entropies = [], [], []
    for _ in range(SAMPLES):
        drawn = model.generate(
            **prompts,
            do_sample=True,
            top_k=0,
            max_new_tokens=LONGEST,
            return_dict_in_generate=True,
            output_logits=True,
        )
        responses = drawn.sequences[:, width:]  # [P, T]
        logprob = torch.stack(drawn.logits, dim=1).log_softmax(dim=-1)  # [P, T, V]
        entropy = -(logprob.exp() * logprob).sum(dim=-1)  # [P, T]
        inside = responses != TOKEN_ID["<pad>"]  # a base never samples padding
        rights.append(graded(responses))
        lengths.append(inside.sum(dim=1).float())
        entropies.append(entropy[inside])

    rights = torch.stack(rights)  # [SAMPLES, P]
    return {
        "tokens": float(torch.cat(lengths).mean()),
        "accuracy": float(rights.mean()),
        "greedy": float(graded(greedy[:, width:]).mean()),
        f"pass@{SAMPLES}": float(rights.amax(dim=0).mean()),
        "entropy": float(torch.cat(entropies).mean()),
    }


def main(arguments: list[str] | None = None) -> None:
    """Print the table for the bases named on the command line, or for all."""
    tasks = {}
    for base in COMMITTED:
        tasks[base.name] = (task.problems(512, seed=1, k=base.k), task.is_right)
    tasks[code_base_name()] = (code_task.problems(256, seed=1), code_task.is_right)

    parser = argparse.ArgumentParser(
        prog="python -m toy.measure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(tasks)} (default: all)")
    parser.add_argument("--bases", type=Path, default=BASES, help="parent folder")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in tasks:
            parser.error(f"unknown base {name}: choose from {', '.join(tasks)}")

    print(f"| base | tokens | accuracy | greedy | pass@{SAMPLES} | entropy |")
    print("|---|---|---|---|---|---|")
    for name in options.names or tasks:
        problems, is_right = tasks[name]
        torch.manual_seed(0)
        with torch.no_grad():
            columns = measured(
                *load_base(options.bases / name), [p["problem"] for p in problems], is_right
            )
        tokens = columns.pop("tokens")
        values = " | ".join(f"{value:.3f}" for value in columns.values())
        print(f"| `{name}` | {tokens:.0f} | {values} |", flush=True)


if __name__ == "__main__":
    main()
