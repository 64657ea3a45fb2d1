"""Measures the speed of a model's training step, beside transformers' `generate` and TRL.

    python -m benchmarks speed --model FOLDER --data FILE --peers .venv-engines/bin/python

This times train.py's stages and `generate`; with --peers, the interpreter of `make engines`, also a
step of TRL's GRPOTrainer. All other flags are train.py's.

Each part runs in a process of its own, so its peak memory is measured alone. All steps have the
same prompts. No token ends a response, so each has --max-new-tokens tokens. Every other response
counts as right, so every token is in an update. One step is timed, after a short one that is not.
"""

import json
import resource
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from transformers import GenerationConfig

import train
from benchmarks.tables import print_table
from config import Config, parse_config
from infra.errors import Stop, UserError, one_line_endings
from infra.loading import computation_dtype
from infra.model_files import from_files, locate
from infra.problems import encode_prompts, load_sets, prompt_flags
from infra.progress import Stopwatch
from infra.ranks import this_device
from infra.sampler import left_padded
from toy.by_name import model_folder

FLAGS = "--data gsm8k --eval-data= --prompts 4 --group-size 8 --mini-batch 4 --max-new-tokens 256"
FLAGS += " --max-prompt-tokens 512 --micro-batch-tokens 2048 --recompute False"
WARM_UP = 16  # new tokens of the step that is not counted
STAGES = ("sampling", "old_logprob", "weighting", "updating")  # of train.py, as in metrics.jsonl

# ---- the command ---------------------------------------------------------------------------------


def speed(args) -> None:
    """Print a table of rates. Raises UserError; Stop if a part fails."""
    about = "All other flags are train.py's."
    parser = ArgumentParser("python -m benchmarks speed", None, about, allow_abbrev=False)
    parser.add_argument("--peers", help="the Python that has TRL: .venv-engines/bin/python")
    own, rest = parser.parse_known_args(args.flags)
    flags = [*FLAGS.split(), *rest]
    cfg = parse_config(flags)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{date.today()}, {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    dtype = computation_dtype(cfg.dtype)
    print(f"{cfg.model}, {dtype}, --micro-batch-tokens {cfg.micro_batch_tokens}\n")

    parts = {"train.py": sys.executable, "generate": sys.executable}
    if own.peers:
        if not Path(own.peers).exists():
            raise UserError(f"--peers {own.peers}: no such file; `make engines` installs it")
        parts["TRL"] = own.peers
    print_table(["tokens/s", *STAGES, "step", "peak memory, GB"], lines_of(parts, flags))


def lines_of(parts: dict[str, str], flags: list[str]) -> Iterator[list[str]]:
    """Yields each part's tokens a second, by stage and in the whole step, and its peak memory."""
    for name, python in parts.items():
        part = in_own_process(python, name, flags)
        tokens, seconds = part["responses"] * part["length"], part["seconds"]
        label = f"{name}, {part['responses']} x {part['length']}"
        cells = [f"{tokens / seconds[x]:.4g}" if x in seconds else "" for x in (*STAGES, "step")]
        yield [label, *cells, f"{part['peak'] / 1e9:.1f}"]


def in_own_process(python: str, name: str, flags: list[str]) -> dict:
    """What `main` writes in a process of its own. Raises Stop if it fails."""
    with TemporaryDirectory() as folder:
        command = [python, "-m", "benchmarks.speed", folder, name, *flags]
        code = subprocess.run(command, stdout=2).returncode  # stdout has only the table
        if code == 2:
            sys.exit(code)  # it has printed the user's mistake
        if code:
            raise Stop(f"{name}: its process ended with code {code}; see its output above", 1)
        return json.loads(Path(folder, "measured.json").read_text())


def main(folder: str, name: str, *flags: str) -> None:
    """Measure one of PARTS in this process, and write its seconds and its peak memory."""
    with one_line_endings(f"benchmarks speed, {name}"):
        cfg = parse_config(list(flags))
        cfg = replace(cfg, model=str(model_folder(cfg.model, cfg.toy_regime)))
        endless = patch("rollout.end_tokens", lambda *_: [])
        with endless, patch("infra.grading.grade_all", every_other_right):
            seconds = PARTS[name](replace(cfg, output_dir=f"{folder}/run"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # in kB on Linux
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
    size = {"responses": cfg.prompts * cfg.group_size, "length": cfg.max_new_tokens}
    found = json.dumps({**size, "seconds": seconds, "peak": peak})
    Path(folder, "measured.json").write_text(found)


# ---- the parts -----------------------------------------------------------------------------------


def prompts_of(cfg: Config) -> list[list[int]]:
    """Token ids of the first --prompts problems."""
    encoding = locate(cfg.model)[2], cfg.max_prompt_tokens, *prompt_flags(cfg).values()
    return encode_prompts(load_sets(**cfg.sets)[0], *encoding)[1][: cfg.prompts]


def every_other_right(completions: list, *_, **__) -> list[float]:
    """Rewards of 0 and 1 by turns, so that every group has right and wrong responses."""
    return [float(i % 2) for i in range(len(completions))]


def of_second_step(cfg: Config, step: Callable[[int], dict]) -> dict:
    """The seconds by stage of a step after a short one. step: new tokens -> seconds by stage."""
    step(min(WARM_UP, cfg.max_new_tokens))
    return step(cfg.max_new_tokens)


def of_train(cfg: Config) -> dict:
    """Times a step of train.py."""
    run = train.prepare(cfg)
    run.problems, run.prompts = run.problems[: cfg.prompts], run.prompts[: cfg.prompts]

    def step(length: int) -> dict:
        run.cfg = replace(run.cfg, max_new_tokens=length)
        run.state.step += 1
        watch = Stopwatch()
        rollouts = train.sample(run, run.state.step, watch)
        parts = run.policy, run.optimizer, run.method, rollouts, run.cfg, run.state.step
        train.train_step(*parts, watch)
        seconds = watch.seconds()
        of_stages = {stage: seconds[f"seconds_{stage}"] for stage in STAGES}
        return of_stages | {"step": seconds["seconds"]}

    return of_second_step(cfg, step)


def of_generate(cfg: Config) -> dict:
    """Times one call of transformers' `generate` for all responses."""
    _, lm = from_files(cfg.model, locate(cfg.model)[0], computation_dtype(cfg.dtype))
    lm = lm.to(this_device())
    lm.generation_config = GenerationConfig()  # without the model's penalties and end tokens
    sequences = [ids for ids in prompts_of(cfg) for _ in range(cfg.group_size)]
    ids, mask = left_padded(sequences, lm.device)
    sampling = {"do_sample": True, "temperature": cfg.temperature, "top_k": 0, "pad_token_id": 0}

    def step(length: int) -> dict:
        settings = GenerationConfig(max_new_tokens=length, **sampling)
        watch = Stopwatch()
        lm.generate(ids, attention_mask=mask, generation_config=settings).cpu()
        watch.lap("sampling")
        return {"sampling": watch.stages["seconds_sampling"]}

    return of_second_step(cfg, step)


def of_trl(cfg: Config) -> dict:
    """Times a step of TRL's GRPOTrainer with as many updates.

    If a step has a single update, TRL makes no pass at θ_old.
    """
    from datasets import Dataset
    from trl import GRPOTrainer
    from trl.scripts import grpo

    prompts = prompts_of(cfg)
    of_step, of_update = (n * cfg.group_size for n in (cfg.prompts, cfg.mini_batch))  # responses
    longest = max(map(len, prompts)) + cfg.max_new_tokens
    fit = [n for n in range(1, of_update + 1) if n * longest <= cfg.micro_batch_tokens]
    at_once = max((n for n in fit if of_update % n == 0), default=1)  # in a micro-batch
    bfloat16 = computation_dtype(cfg.dtype) == torch.bfloat16
    flags = f"""
        --per_device_train_batch_size {at_once} --steps_per_generation {of_step // at_once}
        --gradient_accumulation_steps {of_update // at_once} --max_steps {of_step // of_update}
        --num_generations {cfg.group_size} --max_completion_length {cfg.max_new_tokens}
        --temperature {cfg.temperature} --gradient_checkpointing {cfg.recompute}
        --bf16 {bfloat16} --use_cpu {this_device().type == "cpu"}
        --save_strategy no --report_to none --output_dir {cfg.output_dir}
    """
    settings = grpo.make_parser().parse_args_and_config(flags.split())[1]
    settings.model_init_kwargs = {"dtype": "float32"}  # the weights, as in train.py
    rows = Dataset.from_list([{"prompt": str(i)} for i in range(cfg.prompts)])
    trainer = GRPOTrainer(str(locate(cfg.model)[0]), every_other_right, settings, rows)
    trainer._tokenize_prompts = lambda names: ([prompts[int(name)] for name in names], None, {})
    trainer.eos_token_ids = []

    def step(length: int) -> dict:
        changed = {"max_new_tokens": length, "eos_token_id": []}
        trainer.generation_config.update(**changed)
        trainer.generation_kwargs.update(changed)
        return {"step": trainer.train().metrics["train_runtime"]}

    return of_second_step(cfg, step)


PARTS = {"train.py": of_train, "generate": of_generate, "TRL": of_trl}

if __name__ == "__main__":
    main(*sys.argv[1:])
