"""Trains with TRL's own GRPOTrainer, as train.py's commands in protocol.md do.

    .venv-engines/bin/python results/curve/trl_run.py MODEL DATA RATE STEPS SEED STOP OUT [FILE]

Problems and their order, prompt, grader, batch, learning rate, clip range and the tokens that end a
response are train.py's. STOP is `line` if a line break ends it, else `end`. FILE is the
samples.jsonl of a run of train.py with `--samples 64 --eval-every 1`: TRL's trainer then learns
from these responses, and samples none. OUT/metrics.jsonl gets each step's metrics, which `python -m
benchmarks.curves` draws beside runs of train.py. OUT/model is the trained model. `make engines`
installs TRL.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))  # for the project's imports below

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
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


class SameResponses:
    """TRL's rollout function: the responses of a run of train.py, from its samples.jsonl."""

    def __init__(self, file: str, tokenizer):
        self.samples = [json.loads(line) for line in Path(file).read_text().splitlines()]
        self.tokenizer = tokenizer

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict:
        """A step's prompts and responses as token ids."""
        step = trainer.state.global_step + 1
        samples = [sample for sample in self.samples if sample["step"] == step]
        for prompt, sample in zip(prompts, samples, strict=True):
            assert sample["problem"] in prompt
        return {
            "prompt_ids": self.tokenizer(prompts).input_ids,
            "completion_ids": [self.ids(sample["tokens"]) for sample in samples],
            "logprobs": None,
        }

    def ids(self, texts: list[str]) -> list[int]:
        """The ids of tokens, from each token's text."""
        ids = [self.tokenizer(text, add_special_tokens=False).input_ids for text in texts]
        assert all(len(of_text) == 1 for of_text in ids)
        return [of_text[0] for of_text in ids]


class MetricsFile(TrainerCallback):
    """Writes the metrics of each step."""

    def __init__(self, file: Path):
        self.file = file

    def on_log(self, args, state, control, logs, **_) -> None:
        """Add a line. `logs` has no reward at the end of training."""
        if "reward" in logs:
            line = {"step": state.global_step, "seconds": logs["step_time"]}
            line |= {name: logs[name] for name in ("reward", "loss", "grad_norm", "entropy")}
            with open(self.file, "a") as file:
                file.write(json.dumps(line) + "\n")


def main(
    name: str, data: str, rate: str, steps: str, seed: str, stop: str, out: str, responses: str = ""
) -> None:
    """Train for some steps, write their metrics, and save the model."""
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

    end_set = set(ends)

    def graded(completions, completion_ids, gold, **_) -> list[float]:
        truncated = [end_set.isdisjoint(ids) for ids in completion_ids]
        return [reward(*each) for each in zip(completions, gold, truncated, strict=True)]

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
        reward_funcs=graded,
        args=config,
        train_dataset=rows(data, int(steps), int(seed)),
        processing_class=tokenizer,
        callbacks=[MetricsFile(folder / "metrics.jsonl")],
        rollout_func=SameResponses(responses, tokenizer) if responses else None,
    )
    trainer.train()
    trainer.save_model(folder / "model")


if __name__ == "__main__":
    main(*sys.argv[1:])
