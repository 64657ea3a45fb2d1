"""Trains on Countdown with TRL's own GRPOTrainer, as train.py's command in docs/running.md does.

    .venv-engines/bin/python results/countdown/trl_run.py MODEL DATA RATE STEPS OUT

Problems and their order, prompt, reward, batch, learning rate, clip range and the tokens that end a
response are train.py's. OUT/metrics.jsonl gets the mean reward of each step, and the seconds since
the one before. `python -m benchmarks.curves` draws it beside a run of train.py. OUT/model is the
trained model. `make engines` installs TRL.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))  # for the project's imports below

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from recipes.countdown import reward
from rollout import problems_of_step

PROMPTS, G = 16, 8  # problems of a step, responses to each
UPDATES = 2  # per step


def main(name: str, data: str, rate: str, steps: str, out: str) -> None:
    """Train for some steps, write their rewards, and save the model."""
    folder, count = Path(out), int(steps)
    folder.mkdir(parents=True)
    settings = {"seed": 0, "trainer": "TRL's GRPOTrainer", "model": name, "lr": float(rate)}
    (folder / "config.json").write_text(json.dumps(settings))
    lm = AutoModelForCausalLM.from_pretrained(name, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    # A response ends with a line break, which is part of several tokens.
    lm.generation_config.eos_token_id = [
        i for i in range(len(tokenizer)) if "\n" in tokenizer.decode([i])
    ] + [tokenizer.eos_token_id]

    lines = Path(f"{data}/train.jsonl").read_text().splitlines()
    problems = [json.loads(line) for line in lines]
    template = Path(f"{data}/prompt.txt").read_text()
    order = problems_of_step(len(problems), 1, PROMPTS * count, seed=0)  # train.py's order
    rows = [
        problems[i] | {"prompt": template.replace("{problem}", problems[i]["problem"])}
        for i in order
    ]
    started, step = time.time(), 0

    def graded(completions: list[str], numbers, target, **_) -> list[float]:
        """The rewards of a step's 128 responses, whose mean is logged."""
        nonlocal started, step
        pairs = zip(numbers, target, strict=True)
        asked = [{"numbers": n, "target": t} for n, t in pairs]
        rewards = [reward(*pair) for pair in zip(completions, asked, strict=True)]
        step += 1
        line = {"step": step, "reward": sum(rewards) / len(rewards)}
        line["seconds"] = time.time() - started
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        started = time.time()
        return rewards

    config = GRPOConfig(
        output_dir=str(folder),
        learning_rate=float(rate),
        lr_scheduler_type="constant",
        weight_decay=0.1,
        max_grad_norm=1.0,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        num_generations=G,
        generation_batch_size=PROMPTS * G,
        per_device_train_batch_size=PROMPTS * G // UPDATES,
        gradient_accumulation_steps=1,
        max_steps=UPDATES * count,
        max_completion_length=12,
        temperature=1.0,
        top_k=0,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=True,
        save_strategy="no",
        report_to="none",
        logging_steps=UPDATES,
        seed=0,
    )
    trainer = GRPOTrainer(
        model=lm,
        reward_funcs=graded,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(folder / "model")


if __name__ == "__main__":
    main(*sys.argv[1:])
