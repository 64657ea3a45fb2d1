"""A training step of ours, DelTA on, against one of TRL's GRPOTrainer on identical work (`trl`).

The toy model, 16 prompts x 16 responses of 80 tokens at most, 4 updates of 64 responses, the same
clipping (0.2, 0.28), AdamW, float32, no KL term, DAPO's loss; ours and theirs in turn, in one run.
TRL is installed beside requirements.txt in an environment of its own: pip install trl==1.16.0
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from tqdm import tqdm

import toy
import train
from benchmarks.tables import table_line
from benchmarks.timing import ratios, spread

STEPS = 6  # of a round; the first does not count
UPDATES = 4  # of a step
PROMPTS = 16
GROUP = 16
LONGEST = 80  # tokens of a response
RATE = 1e-4
K, NOISE = 10, 0.06  # chains of 10 operations: responses of 75 tokens


def ours(folder: str, steps: int) -> tuple[list[float], list[float]]:
    """Seconds and mean reward of each step of a fresh run of train.train."""
    flags = (
        f"--prompts {PROMPTS} --group-size {GROUP} --mini-batch {PROMPTS // UPDATES} "
        f"--max-new-tokens {LONGEST} --micro-batch-tokens 8192 --lr {RATE} "
        f"--toy-k {K} --toy-noise {NOISE} --steps {steps} --save-every 1000000"
    ).split()
    train.train(train.parse_config([*flags, "--eval-data", "", "--output-dir", folder]))

    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    return [row["seconds"] for row in metrics], [row["reward"] for row in metrics]


def theirs(folder: str, steps: int) -> tuple[list[float], list[float]]:
    """The same of GRPOTrainer."""
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
            grades.append(reward(text, gold))
        rewards.append(statistics.mean(grades))
        return grades

    lm, tokenizer = toy.base_model(K, NOISE)
    problems = toy.problems(8192, seed=0, k=K)
    trainer = GRPOTrainer(
        lm,
        reward,
        args=trainer_config(folder, steps),
        train_dataset=Dataset.from_list([{"prompt": p["problem"], **p} for p in problems]),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
    return seconds, rewards


def trainer_config(folder: str, steps: int):
    """The GRPOConfig of the same work."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=PROMPTS * GROUP // UPDATES,
        gradient_accumulation_steps=1,
        steps_per_generation=UPDATES,
        num_generations=GROUP,
        max_completion_length=LONGEST,
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


SIDES = {"ours": ours, "TRL": theirs}


def trl(args) -> dict:
    """Print rounds of STEPS steps each, ours and theirs in turn."""
    times = {name: [] for name in SIDES}
    first = {name: [] for name in SIDES}
    last = {name: [] for name in SIDES}
    for _ in tqdm(range(args.repetitions), desc="rounds", disable=None):
        for name, train_some in SIDES.items():
            with tempfile.TemporaryDirectory() as folder:
                seconds, rewards = train_some(folder, STEPS)
            times[name].append(statistics.median(seconds[1:]))
            first[name].append(rewards[0])
            last[name].append(rewards[-1])

    print(
        f"| | seconds a step, median (min to max) of {args.repetitions} rounds "
        "| reward, first and last step |\n|---|---|---|"
    )
    for name in SIDES:
        reward = f"{statistics.mean(first[name]):.3f}, {statistics.mean(last[name]):.3f}"
        print(table_line([name, spread(times[name]), reward]))

    ratio = ratios(times["ours"], times["TRL"])
    print(f"\nours takes {spread(ratio, 2)} of TRL's time")
    return {"seconds": times, "ratio": ratio, "first": first, "last": last}
