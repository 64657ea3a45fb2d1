"""One training step of TRL's GRPOTrainer against one of ours with DelTA on, on identical work, alternating in one run (`trl`).

The toy model, 16 prompts x 16 responses x 80 tokens at most, 4 updates of 64 responses, the same clipping (0.2, 0.28), AdamW, float32, no KL
term, DAPO's loss. TRL is installed beside requirements.txt in an environment of its own: pip install trl==1.16.0
"""
import json, statistics, tempfile, time
from pathlib import Path

import torch
from tqdm import tqdm

import toy, train
from benchmarks.speed import spread
from data import grade

STEPS, K, NOISE = 6, 10, 0.06  # steps a round; chains of 10 operations: responses of 75 tokens


def ours(folder: str, steps: int):
    """Seconds and mean rewards of a fresh run of train.train."""
    flags = ["--prompts", "16", "--group-size", "16", "--mini-batch", "4", "--max-new-tokens", "80", "--micro-batch-tokens", "8192", "--eval-data", "",
             "--toy-k", str(K), "--toy-noise", str(NOISE), "--lr", "1e-4", "--save-every", "1000000", "--steps", str(steps), "--output-dir", folder]
    train.train(train.parse_config(flags))
    rows = [json.loads(line) for line in open(Path(folder) / "metrics.jsonl")]
    return [row["seconds"] for row in rows], [row["reward"] for row in rows]


def theirs(folder: str, steps: int):
    """The same of GRPOTrainer."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    lm, tokenizer = toy.base_model(K, NOISE)
    problems, rewards, seconds = toy.problems(8192, seed=0, k=K), [], []

    def reward(completions, answer, problem, **_):
        rewards.append([grade(text, {"answer": a}) for text, a in zip(completions, answer)])
        return rewards[-1]

    class Clock(TrainerCallback):
        """Four optimiser steps share one generation: a step of the algorithm is four of the trainer's."""
        def on_step_begin(self, args, state, control, **_):
            if state.global_step % 4 == 0:
                self.start = time.perf_counter()

        def on_step_end(self, args, state, control, **_):
            if state.global_step % 4 == 0:
                seconds.append(time.perf_counter() - self.start)

    config = GRPOConfig(output_dir=folder, per_device_train_batch_size=64, gradient_accumulation_steps=1, steps_per_generation=4, num_generations=16,
                        max_completion_length=80, learning_rate=1e-4, lr_scheduler_type="constant", weight_decay=0.1, max_grad_norm=1.0, beta=0.0,
                        epsilon=0.2, epsilon_high=0.28, loss_type="dapo", temperature=1.0, max_steps=4 * steps, report_to=[], save_strategy="no",
                        logging_strategy="no", use_cpu=not torch.cuda.is_available(), bf16=False, gradient_checkpointing=False, disable_tqdm=True)
    trainer = GRPOTrainer(lm, reward, args=config, train_dataset=Dataset.from_list([{"prompt": p["problem"], **p} for p in problems]),
                          processing_class=tokenizer, callbacks=[Clock()])
    trainer.train()
    return seconds, [statistics.mean(r) for r in rewards]


def trl(args) -> dict:
    """Rounds of STEPS steps each, ours and theirs in turn; the first step of every round does not count."""
    toy.base_folder(K, NOISE)
    times, first, last = {"ours": [], "TRL": []}, {"ours": [], "TRL": []}, {"ours": [], "TRL": []}
    for _ in tqdm(range(args.repetitions), desc="rounds", disable=None):
        for name, function in (("ours", ours), ("TRL", theirs)):
            with tempfile.TemporaryDirectory() as folder:
                seconds, rewards = function(folder, STEPS)
            times[name].append(statistics.median(seconds[1:]))
            first[name].append(rewards[0])
            last[name].append(rewards[-1])
    ratio = [a / b for a, b in zip(times["ours"], times["TRL"])]
    print(f"| | seconds a step, median (min to max) of {args.repetitions} rounds | reward, first and last step |\n|---|---|---|")
    for name in times:
        print(f"| {name} | {spread(times[name])} | {statistics.mean(first[name]):.3f}, {statistics.mean(last[name]):.3f} |")
    print(f"\nours takes {spread(ratio, 2)} of TRL's time")
    return {"seconds": times, "ratio": ratio, "first": first, "last": last}
