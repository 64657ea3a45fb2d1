"""A training step of ours, DelTA on, against one of TRL's GRPOTrainer on identical work (`trl`).

The toy model, 16 prompts x 16 responses, 4 updates of 64 responses, the same clipping (0.2, 0.28),
AdamW, float32, no KL term, DAPO's loss; ours and theirs in turn, in one run. Two mixes of lengths:

    even   as the model ends its responses, of some 75 tokens, and never more than 80
    tail   scripted: 56 tokens, and one response in ten eight times as long. What is sampled there
           says nothing, and whether its text has an odd number of characters is the reward

TRL is installed beside requirements.txt in an environment of its own: pip install trl==1.16.0
"""

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from tqdm import tqdm
from transformers import LogitsProcessor, LogitsProcessorList

import rollout
import toy
import train
from benchmarks.scripted import END_TOKEN, Scripted, script
from benchmarks.timing import ratios, spread
from grading import grade
from studies.tables import table_line

STEPS = 6  # of a round; the first does not count
UPDATES = 4  # of a step
PROMPTS = 16
GROUP = 16
RATE = 1e-4
K, NOISE = 10, 0.06  # chains of 10 operations: responses of 75 tokens

LONGEST = {"even": 80, "tail": 448}  # tokens of a response
SHORT = 56  # of the tail's other responses
EVERY = 10  # one in so many is long


def scripted_length(number: int) -> int:
    """Tokens of the tail's response of that number."""
    return LONGEST["tail"] if number % EVERY == 0 else SHORT


def odd_length(response: str, problem: dict) -> float:
    """The tail's reward."""
    return float(len(response) % 2)


def odd_lengths(responses: list[str], problems: list[dict], *_) -> list[float]:
    """The tail's reward of several responses."""
    return [odd_length(*pair) for pair in zip(responses, problems, strict=True)]


REWARDS = {"even": grade, "tail": odd_length}

# ---- ours ----------------------------------------------------------------------------------------


def ours(mix: str, folder: str, steps: int) -> tuple[list[float], list[float]]:
    """Seconds and mean reward of each step of a fresh run of train.train."""
    flags = (
        f"--prompts {PROMPTS} --group-size {GROUP} --mini-batch {PROMPTS // UPDATES} "
        f"--max-new-tokens {LONGEST[mix]} --micro-batch-tokens 8192 --lr {RATE} "
        f"--toy-regime sharpen --toy-k {K} --toy-noise {NOISE} --steps {steps} --save-every 1000000"
    ).split()
    cfg = train.parse_config([*flags, "--eval-data", "", "--output-dir", folder])
    with scripted_here() if mix == "tail" else contextlib.nullcontext():
        train.train(cfg)

    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    return [row["seconds"] for row in metrics], [row["reward"] for row in metrics]


@contextlib.contextmanager
def scripted_here() -> Iterator[None]:
    """Our sampler ends responses where the script says so."""

    def numbers(seed: int, step: int, problem: int, sample: int, count: int) -> np.ndarray:
        return script(sample, scripted_length(problem * GROUP + sample), count)

    with (
        patch.object(rollout, "uniforms", numbers),
        patch.object(rollout, "InverseCDF", Scripted),
        patch.object(train, "grades", odd_lengths),
    ):
        yield


# ---- theirs --------------------------------------------------------------------------------------


class EndsAt(LogitsProcessor):
    """The same for TRL's sampler: no end before a response's length, and nothing else at it."""

    def __init__(self, prompt_width: int, count: int):
        self.prompt_width = prompt_width
        self.length = torch.tensor([scripted_length(i) for i in range(count)])

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        new = input_ids.shape[1] - self.prompt_width
        scores[:, END_TOKEN] = -torch.inf
        ends = self.length == new + 1
        scores[ends] = -torch.inf
        scores[ends, END_TOKEN] = 0.0
        return scores


def script_theirs(lm) -> None:
    """Let `lm.generate`, as GRPOTrainer calls it, follow the script."""
    generate = lm.generate

    def scripted(**inputs):
        count, width = inputs["input_ids"].shape
        processors = LogitsProcessorList([EndsAt(width, count)])
        return generate(**inputs, logits_processor=processors)

    lm.generate = scripted


def theirs(mix: str, folder: str, steps: int) -> tuple[list[float], list[float]]:
    """Seconds and mean reward of each step of GRPOTrainer."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    seconds = []
    rewards = []

    class Clock(TrainerCallback):
        """UPDATES steps of the trainer share one generation: together they are one of ours."""

        def on_step_begin(self, args, state, control, **_):
            if state.global_step % UPDATES == 0:
                self.start = time.perf_counter()

        def on_step_end(self, args, state, control, **_):
            if state.global_step % UPDATES == 0:
                seconds.append(time.perf_counter() - self.start)

    def reward(completions, answer, **_):
        grades = []
        for text, gold in zip(completions, answer, strict=True):
            grades.append(REWARDS[mix](text, {"answer": gold}))
        rewards.append(statistics.mean(grades))
        return grades

    lm, tokenizer = toy.base_model(K, NOISE)
    if mix == "tail":
        script_theirs(lm)
    problems = toy.problems(8192, seed=0, k=K)
    trainer = GRPOTrainer(
        lm,
        reward,
        args=trainer_config(mix, folder, steps),
        train_dataset=Dataset.from_list([{"prompt": p["problem"], **p} for p in problems]),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
    return seconds, rewards


def trainer_config(mix: str, folder: str, steps: int):
    """The GRPOConfig of the same work."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=PROMPTS * GROUP // UPDATES,
        gradient_accumulation_steps=1,
        steps_per_generation=UPDATES,
        num_generations=GROUP,
        max_completion_length=LONGEST[mix],
        max_steps=UPDATES * steps,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        weight_decay=0.1,
        max_grad_norm=1.0,
        beta=0.0,  # no KL term
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        temperature=1.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


# ---- in turn -------------------------------------------------------------------------------------

SIDES = {"ours": ours, "TRL": theirs}


def trl(args) -> dict:
    """A step of ours against one of TRL's GRPOTrainer (trl==1.16.0, in an environment of its own).

    Rounds of STEPS steps each, ours and theirs in turn, for each mix of lengths.
    """
    print(
        f"| lengths | | seconds a step, median (min to max) of {args.repetitions} rounds "
        "| reward, first and last step | ours / TRL |\n|---|---|---|---|---|"
    )
    return {mix: in_turn(mix, args.repetitions) for mix in LONGEST}


def in_turn(mix: str, repetitions: int) -> dict:
    """Print the two lines of a mix of lengths; what was measured."""
    times = {name: [] for name in SIDES}
    first = {name: [] for name in SIDES}
    last = {name: [] for name in SIDES}
    for _ in tqdm(range(repetitions), desc=f"rounds, {mix}", disable=None):
        for name, side in SIDES.items():
            with tempfile.TemporaryDirectory() as folder:
                seconds, rewards = side(mix, folder, STEPS)
            times[name].append(statistics.median(seconds[1:]))
            first[name].append(rewards[0])
            last[name].append(rewards[-1])

    ratio = ratios(times["ours"], times["TRL"])
    for name in SIDES:
        reward = f"{statistics.mean(first[name]):.3f}, {statistics.mean(last[name]):.3f}"
        of_theirs = spread(ratio, 2) if name == "ours" else "1"
        print(table_line([mix, name, spread(times[name]), reward, of_theirs]), flush=True)
    return {"seconds": times, "ratio": ratio, "first": first, "last": last}
