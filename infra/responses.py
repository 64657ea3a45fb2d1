"""Benchmarks and their responses, appended to one file per rank as they finish.

Each benchmark has a folder in the output, with run.json (infra/folder.py) and responses-RANK.jsonl.
Shapes: P problems, n samples each.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from infra.errors import UserError
from infra.files import read_lines
from infra.folder import RUN_FILE, claim, data_hash, read_run
from infra.hub import SOURCES
from infra.model_files import refuse_length
from infra.problems import encode_prompts, load_problems
from toy.by_name import SETS

# ---- benchmarks ----------------------------------------------------------------------------------


class Benchmark(NamedTuple):
    """The problems of a benchmark, cut to --limit."""

    problems: list[dict]  # the first --limit problems
    hash: str  # of all problems in the set, so that --limit may change


def load_benchmarks(config) -> dict[str, Benchmark]:
    """Output folder name -> benchmark, for --benchmarks in an evaluate.Config.

    A known set's name is its folder name. Other names may repeat (two files may be called
    test.jsonl), so a hash of the problems is added. Raises UserError if none is named.
    """
    benchmarks = {}
    for name in config.benchmarks.split(","):
        name = name.strip()
        if not name:
            continue
        columns = (config.problem_column, config.answer_column)
        problems = load_problems(name, *columns, flag="--benchmarks")
        found = data_hash(problems)
        folder = name
        if name not in (*SOURCES, *SETS):
            folder = f"{Path(name).stem}-{found[:8]}"
        benchmarks[folder] = Benchmark(problems[: config.limit or None], found)
    if not benchmarks:
        raise UserError("--benchmarks is empty: name a known set, a local file or a hub id")
    return benchmarks


def claim_benchmarks(
    folder: Path, benchmarks: dict[str, Benchmark], conditions: dict, regrade: bool
) -> None:
    """Check that any files in `folder` belong to this evaluation. Only the first rank calls this.

    conditions: the fingerprint of settings and model. With `regrade` nothing is sampled, and only
    the problems must match. Raises UserError.
    """
    if (folder / "scores.json").exists() and not list(folder.glob(f"*/{RUN_FILE}")):
        raise UserError(
            f"{folder} holds a scores.json from another program (no {RUN_FILE} with responses): "
            "choose another --output-dir"
        )
    for name, benchmark in benchmarks.items():
        now = conditions
        if regrade:
            known = read_run(folder / name)
            if known is None:
                raise UserError(
                    f"{folder / name} holds no responses from an evaluation (no {RUN_FILE}): "
                    "run without --regrade"
                )
            now = known["fingerprint"]
        now = now | {f"{name} problems": benchmark.hash}
        claim(folder / name, now, ("responses-*.jsonl", "wrong.jsonl"))


def encode_benchmarks(lm, tokenizer, benchmarks: dict[str, Benchmark], config) -> dict:
    """Benchmark -> token ids of its prompts.

    Raises UserError if a prompt exceeds --max-prompt-tokens, or prompt plus response exceeds
    the model's positions.
    """
    encoded = {}
    for name, benchmark in benchmarks.items():
        kept, prompts = encode_prompts(
            benchmark.problems, tokenizer, config.max_prompt_tokens, config.prompt_template
        )
        if len(kept) < len(benchmark.problems):
            raise UserError(f"{name}: raise --max-prompt-tokens, because all problems must fit")
        refuse_length(lm.config, prompts, config.max_new_tokens)
        encoded[name] = prompts
    return encoded


# ---- responses -----------------------------------------------------------------------------------


def saved_responses(folder: Path) -> dict[tuple[int, int], dict]:
    """(problem, sample) -> row, from the files of all ranks and runs in `folder`."""
    saved = {}
    for path in sorted(folder.glob("responses-*.jsonl")):
        for row in read_lines(path, problem=int, sample=int, response=str, truncated=bool):
            saved[row["problem"], row["sample"]] = row
    return saved


@dataclass(frozen=True)
class Wanted:
    """A missing response."""

    benchmark: str
    problem: int  # index in the benchmark
    sample: int  # which of the problem's n samples
    prompt: list[int]  # token ids


def missing_responses(
    encoded: dict[str, list[list[int]]], samples: int, folder: Path, rank: int, world: int
) -> list[Wanted]:
    """The responses that this rank must sample: its share, minus the responses already in `folder`.

    A problem's responses are spread over the ranks, because a hard problem has only long responses.
    """
    wanted = []
    counted = 0  # responses over all benchmarks, dealt to the ranks round-robin
    for name, prompts in encoded.items():
        saved = saved_responses(folder / name)
        for i, prompt in enumerate(prompts):
            for sample in range(samples):
                counted += 1
                if counted % world == rank and (i, sample) not in saved:
                    wanted.append(Wanted(name, i, sample, prompt))
    return wanted
