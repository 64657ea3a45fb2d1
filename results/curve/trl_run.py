"""Trains with TRL's own GRPOTrainer, as train.py's commands in protocol.md do.

    .venv-engines/bin/python results/curve/trl_run.py MODEL DATA RATE STEPS SEED STOP OUT

Problems and their order, prompt, grader, batch, learning rate, clip range and the tokens that end a
response are train.py's. STOP is `line` if a line break ends it, else `end`. OUT/metrics.jsonl gets
the mean reward of each step, and the seconds since the one before. `python -m benchmarks.curves`
draws it beside runs of train.py. OUT/model is the trained model. `make engines` installs TRL.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))  # for the project's imports below

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from infra.problems import load_problems
from rollout import problems_of_step
from verify import reward

PROMPTS, G = 8, 8  # problems of a step, responses to each; a step is one update
MAX_NEW_TOKENS = 64


def rows(data: str, steps: int, seed: int) -> Dataset:
    """The prompts and answers of all steps, in train.py's order."""
    problems = load_problems(f"{data}/train.jsonl", "question")
    template = Path(f"{data}/prompt.txt").read_text()
    asked = [problems[i] for i in problems_of_step(len(problems), 1, PROMPTS * steps, seed)]
    return Dataset.from_list(
        [
            {"prompt": template.replace("{problem}", each["problem"]), "gold": each["answer"]}
            for each in asked
        ]
    )


class Graded:
    """TRL's reward function: it also writes the mean reward of each step."""

    __name__ = "graded"  # TRL asks for it

    def __init__(self, file: Path, ends: set[int]):
        self.file, self.ends = file, ends
        self.step, self.started = 0, time.time()

    def __call__(self, completions, completion_ids, gold, **_) -> list[float]:
        """The rewards of a step's 64 responses."""
        truncated = [not self.ends.intersection(ids) for ids in completion_ids]
        grades = [reward(*each) for each in zip(completions, gold, truncated, strict=True)]
        self.step += 1
        line = {"step": self.step, "reward": sum(grades) / len(grades)}
        line["seconds"] = time.time() - self.started
        with open(self.file, "a") as file:
            file.write(json.dumps(line) + "\n")
        self.started = time.time()
        return grades


def main(name: str, data: str, rate: str, steps: str, seed: str, stop: str, out: str) -> None:
    """Train for some steps, write their rewards, and save the model."""
    folder = Path(out)
    folder.mkdir(parents=True)
    settings = {"seed": int(seed), "trainer": "TRL's GRPOTrainer", "model": name, "lr": float(rate)}
    (folder / "config.json").write_text(json.dumps(settings))
    lm = AutoModelForCausalLM.from_pretrained(name, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    ends = [tokenizer.eos_token_id]
    if stop == "line":  # several tokens have a line break in them
        ends += [i for i in range(len(tokenizer)) if "\n" in tokenizer.decode([i])]
    lm.generation_config.eos_token_id = ends

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
        per_device_train_batch_size=G,  # a pass; a step has PROMPTS of them
        gradient_accumulation_steps=PROMPTS,
        max_steps=int(steps),
        max_completion_length=MAX_NEW_TOKENS,
        temperature=1.0,
        top_k=0,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=True,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        seed=int(seed),
    )
    trainer = GRPOTrainer(
        model=lm,
        reward_funcs=Graded(folder / "metrics.jsonl", set(ends)),
        args=config,
        train_dataset=rows(data, int(steps), int(seed)),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(folder / "model")


if __name__ == "__main__":
    main(*sys.argv[1:])
