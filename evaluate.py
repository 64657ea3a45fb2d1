"""The paper's evaluation (App. I), and its test of whether one model beats another (App. K).

    python evaluate.py --model DIR --benchmarks aime24,aime25            sample, grade, summarise
    torchrun --nproc_per_node 8 evaluate.py --model DIR                  the same, on eight GPUs
    python evaluate.py --model DIR --benchmarks aime24,aime25 --regrade  grade saved responses again
    python evaluate.py compare A B         two output folders: does A's model beat B's?

Every response is appended to <output-dir>/<benchmark>/responses-<rank>.jsonl as it comes, so the
same command continues an interrupted run; another model, set or flag is refused there. Ranks share
the problems, all benchmarks are sampled together, and a response depends on (seed, problem, sample)
alone. scores.json holds the averages, and what `compare` reads.

Departures from the paper: (1) a paired bootstrap over problems stands beside App. K's test, whose
repetitions do not tell how much depends on which problems were asked.

Shapes: P problems of a benchmark, n samples a problem, which are n repetitions of the benchmark.
"""

import json
import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import distributed as dist

from answers.choices import choice
from infra.architecture import refuse_length
from infra.errors import UserError
from infra.files import (
    append_line,
    check_kinds,
    damaged,
    read_json,
    read_lines,
    write_aside,
    write_lines,
)
from infra.flags import (
    AtLeastOne,
    Parser,
    PositiveShare,
    SamplingFlags,
    TaskFlags,
    check_limits,
    flag,
    spelled,
)
from infra.identity import data_hash, lock, model_fingerprint, unlock
from infra.loading import load_model, locate
from infra.problems import SOURCES, TOY_SETS, encode_prompts, load_problems
from infra.ranks import leave, shared_by_ranks, start_ranks
from infra.responses import check_fingerprint, missing_responses, saved_responses, unfinished
from programs.sandbox.probe import prepare_sandbox
from programs.verify_code import rewards
from rollout import Sample, end_tokens, never, respond, rollout, uniforms
from verify import reward

PAPER = "aime24,aime25,aime26,hmmt25_feb,hmmt25_nov,hmmt26_feb,brumo25"  # Table 1


# ---- flags: the defaults are the paper's (App. I) ------------------------------------------------


@dataclass
class BenchmarkFlags:
    """What is asked and how often, and from which part of the model's distribution answers come."""

    _argument_group_name = "evaluation"

    benchmarks: str = flag(PAPER, "comma-separated: known sets, local files or hub ids")
    samples: AtLeastOne = flag(16, "responses a problem, the n of avg@n")
    top_p: PositiveShare = flag(0.7, "nucleus sampling")
    regrade: bool = flag(False, "grade the saved responses again; samples nothing")


@dataclass
class BenchmarkSamplingFlags(SamplingFlags):
    """As in training, but for longer responses."""

    max_new_tokens: AtLeastOne = flag(30000, "longest response, tokens")


@dataclass
class BenchmarkMemoryFlags:
    """What is computed does not depend on it, but for rounding: see rollout.py."""

    _argument_group_name = "memory"

    rollout_rows: AtLeastOne = flag(256, "responses a rank samples at a time at most (ours)")


@dataclass
class BenchmarkRunFlags:
    """Where the responses and the averages go."""

    _argument_group_name = "run"

    output_dir: str = flag("", "default: <model>-evaluation, of a hub id evaluation/<name>")


@dataclass
class Config(
    BenchmarkRunFlags, TaskFlags, BenchmarkFlags, BenchmarkSamplingFlags, BenchmarkMemoryFlags
):
    """All flags of an evaluation."""


GROUPS = list(Config.__bases__)  # each under its heading in --help


# ---- averages ------------------------------------------------------------------------------------


def grade(response: str, problem: dict) -> float:
    """1.0 if the response solves the problem, else 0.0. Multiple choice is graded by its letter."""
    if problem.get("choice"):
        return float(choice(response) == problem["answer"])
    return reward(response, problem["answer"])


def grades(responses: list[str], problems: list[dict]) -> list[float]:
    """1.0 or 0.0 for each response: by its problem's tests where it has some, else by `grade`.

    Ranks, where there are several, share the programs, and all get all grades.
    """
    result = [0.0] * len(responses)
    programs = []
    for i, (response, problem) in enumerate(zip(responses, problems, strict=True)):
        if problem.get("tests"):
            programs.append(i)
        else:
            result[i] = grade(response, problem)

    def run(mine: list[int]) -> list[float]:
        return rewards([responses[i] for i in mine], [problems[i]["tests"] for i in mine])

    for i, value in zip(programs, shared_by_ranks(programs, run), strict=True):
        result[i] = value
    return result


def sample_grades(
    lm,
    tokenizer,
    problems: list[dict],
    prompts: list[list[int]],
    samples: int,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    in_flight: int,
    stop: Callable[[], bool] = never,
) -> np.ndarray:
    """Grades [P, n] in {0, 1} of freshly sampled responses; train.py's evaluation.

    prompts: token ids of the P problems; in_flight: responses sampled at a time at most. All
    ranks call it together. Every call draws the same random numbers, those of step 0, so that two
    evaluations differ by the model alone. Raises Interrupted once stop() is true on a rank.
    """
    rollouts = rollout(
        lm,
        tokenizer,
        prompts,
        range(len(problems)),
        samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        step=0,
        in_flight=in_flight,
        stop=stop,
    )
    asked = [problem for problem in problems for _ in range(samples)]
    return np.array(grades(rollouts.texts, asked)).reshape(len(problems), samples)  # [P, n]


def summary(grades: np.ndarray) -> dict:
    """A benchmark's averages from its grades [P, n], as they stand in scores.json.

    avg and pass are avg@n and pass@n (a problem passes if any of its n responses is right),
    stderr the standard error of avg@n over problems, repetitions the accuracy of each of the n
    repetitions (App. K), by_problem that of each problem.
    """
    by_problem = grades.mean(axis=1)  # [P]
    standard_error = float("nan")
    if len(grades) > 1:
        standard_error = by_problem.std(ddof=1) / math.sqrt(len(grades))

    return {
        "problems": len(grades),
        "avg": float(by_problem.mean()),
        "pass": float(grades.max(axis=1).mean()),
        "stderr": float(standard_error),
        "repetitions": grades.mean(axis=0).tolist(),  # [n]
        "by_problem": by_problem.tolist(),
    }


def weighted_average(values: list[float], problems: list[int]) -> float:
    """The average over benchmarks, weighted by how many problems each has (Table 1)."""
    total = sum(value * count for value, count in zip(values, problems, strict=True))
    return total / sum(problems)


# ---- benchmarks ----------------------------------------------------------------------------------


def encode_benchmarks(lm, tokenizer, benchmarks: dict[str, list[dict]], config: Config) -> dict:
    """The prompts of each benchmark, token ids, by its name.

    Raises UserError if one is longer than --max-prompt-tokens, or with its response longer than
    the model's positions.
    """
    encoded = {}
    for name, problems in benchmarks.items():
        kept, prompts = encode_prompts(
            problems, tokenizer, config.max_prompt_tokens, config.prompt_template
        )
        if len(kept) < len(problems):
            raise UserError(f"{name}: raise --max-prompt-tokens, a benchmark is evaluated whole")
        refuse_length(lm.config, prompts, config.max_new_tokens)
        encoded[name] = prompts
    return encoded


def sample_benchmarks(
    lm,
    tokenizer,
    benchmarks: dict[str, list[dict]],
    config: Config,
    folder: Path,
    rank: int,
    world: int,
) -> None:
    """Sample this rank's missing responses to all benchmarks together, and append each to its file.

    One call of the sampler, so that the ranks' GPUs wait for one long response at the end, and not
    for one of each benchmark. Raises UserError as `encode_benchmarks`.
    """
    encoded = encode_benchmarks(lm, tokenizer, benchmarks, config)
    files = {name: folder / name / f"responses-{rank}.jsonl" for name in benchmarks}
    for path in files.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            # A kill may have left half a line, and the next response must not be glued to it.
            write_lines(path, read_lines(path))

    wanted = missing_responses(encoded, config.samples, folder, rank, world)
    jobs = []
    for each in wanted:
        name = (config.seed, 0, each.problem, each.sample)  # step 0
        jobs.append((each.prompt, partial(uniforms, *name, config.max_new_tokens)))
    ends = end_tokens(lm, tokenizer)
    tenth = math.ceil(len(jobs) / 10)
    finished = 0

    def save(i: int, sample: Sample) -> None:
        nonlocal finished
        row = {
            "problem": wanted[i].problem,
            "sample": wanted[i].sample,
            "response": tokenizer.decode(sample.tokens, skip_special_tokens=True),
            "tokens": len(sample.tokens),
            "truncated": sample.tokens[-1] not in ends,
        }
        append_line(files[wanted[i].benchmark], row)
        finished += 1
        if finished % tenth == 0 or finished == len(jobs):
            print(f"rank {rank} has {finished} of its {len(jobs)} responses", flush=True)

    respond(
        lm,
        tokenizer,
        jobs,
        config.max_new_tokens,
        config.temperature,
        config.top_p,
        config.rollout_rows,
        done=save,
    )


def grade_benchmark(problems: list[dict], samples: int, folder: Path) -> np.ndarray:
    """Grades [P, n] of the responses saved in `folder`. Raises UserError if some are missing."""
    saved = saved_responses(folder)
    missing = unfinished(saved, len(problems), samples)
    if missing:
        raise UserError(
            f"{folder} lacks responses to {len(missing)} of {len(problems)} problems: "
            "run without --regrade"
        )

    texts = [saved[i, sample] for i in range(len(problems)) for sample in range(samples)]
    asked = [problem for problem in problems for _ in range(samples)]
    return np.array(grades(texts, asked)).reshape(len(problems), samples)


# ---- an evaluation -------------------------------------------------------------------------------


def output_folder(config: Config) -> Path:
    """--output-dir, else <model>-evaluation beside the model's folder, or of a hub id's name.

    Not inside the model's folder, which a training may replace by a better model.
    """
    if config.output_dir:
        return Path(config.output_dir)
    model = Path(config.model)
    if model.is_dir():
        return model.resolve().with_name(model.resolve().name + "-evaluation")
    return Path("evaluation") / model.name


def load_benchmarks(config: Config) -> dict[str, list[dict]]:
    """The problems of each of --benchmarks, by the name of its folder in the output.

    A set that is known by name has that name; of any other the name alone says little (two files
    may be called test.jsonl), so a hash of its problems follows. Raises UserError for none.
    """
    benchmarks = {}
    for name in config.benchmarks.split(","):
        if not name.strip():
            continue
        problems = load_problems(name.strip(), config.problem_column, config.answer_column)
        folder = name.strip()
        if folder not in (*SOURCES, *TOY_SETS):
            folder = f"{Path(folder).stem}-{data_hash(problems)[:8]}"
        benchmarks[folder] = problems
    if not benchmarks:
        raise UserError("--benchmarks is empty: name a known set, a local file or a hub id")
    return benchmarks


def fingerprint(config: Config, model: dict[str, str], problems: list[dict]) -> dict:
    """All that a response to these problems depends on: flags, the model's files, and the data."""
    flags = ("temperature", "top_p", "max_new_tokens", "seed", "prompt_template")
    described = {spelled(name): getattr(config, name) for name in flags}
    return {
        "flags": described | {"computed in": str(compute_dtype())},
        "model": model,
        "problems": data_hash(problems),
    }


def compute_dtype() -> torch.dtype:
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


def run(config: Config) -> dict:
    """Sample (not with --regrade), grade and summarise; rank 0 writes scores.json and prints it.

    Returns what scores.json holds, and {} on all other ranks. Raises UserError for wrong flags, a
    model or a benchmark that is not there, and responses that --regrade misses.
    """
    if not config.model and not config.output_dir:
        raise UserError("--model DIR is needed (or --output-dir with --regrade)")
    check_limits(config)
    folder = output_folder(config)

    try:
        return sample_and_grade(config, folder)
    finally:
        unlock(folder)


def sample_and_grade(config: Config, folder: Path) -> dict:
    """`run` into a folder, which is locked on the way."""
    # No process group yet: with one, ranks would sample in step, and the slowest hold up all.
    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))

    files = {}
    if not config.regrade:
        model, _, _ = locate(config.model)  # before any data is fetched
        files = model_fingerprint(model)
    benchmarks = load_benchmarks(config)
    if rank == 0 and any("tests" in each for every in benchmarks.values() for each in every):
        prepare_sandbox(config.code_sandbox)
    if rank == 0:
        lock(folder)
    for name, problems in benchmarks.items():
        wanted = fingerprint(config, files, problems)
        check_fingerprint(folder / name, wanted, config.regrade, rank)

    if not config.regrade:
        lm, tokenizer = load_model(model, compute_dtype())
        sample_benchmarks(lm, tokenizer, benchmarks, config, folder, rank, world)

    if world > 1:
        start_ranks()
        dist.barrier()  # from here on the responses of every rank are on disk
        dist.destroy_process_group()
    if rank != 0:
        return {}

    results = {}
    for name, problems in benchmarks.items():
        results[name] = summary(grade_benchmark(problems, config.samples, folder / name))

    averages = [result["avg"] for result in results.values()]
    sizes = [result["problems"] for result in results.values()]
    scores = {
        "model": config.model,
        "samples": config.samples,
        "average": weighted_average(averages, sizes),
        "benchmarks": results,
    }
    write_aside(folder / "scores.json", json.dumps(scores, indent=1) + "\n")
    print_table(scores, folder)
    return scores


def print_table(scores: dict, folder: Path) -> None:
    """The averages of scores.json as a Markdown table."""
    n = scores["samples"]
    print(f"| benchmark | problems | avg@{n} | pass@{n} | standard error |\n|---|---|---|---|---|")
    for name, result in scores["benchmarks"].items():
        shares = [f"{result[key]:.2%}" for key in ("avg", "pass", "stderr")]
        print("| " + " | ".join([name, str(result["problems"]), *shares]) + " |")
    print(f"question-weighted average: {scores['average']:.2%} ({folder / 'scores.json'})")


# ---- is A better than B? -------------------------------------------------------------------------


def mann_whitney(a: list[float], b: list[float]) -> tuple[float, float]:
    """(U, p) of the one-sided test that the values a exceed the values b (App. K).

    U counts the pairs a_i > b_j, ties as one half. p is the share of all ways to deal the pooled
    values to the two sides that give a U as large. Up to 60 values they are counted, above that
    the normal distribution stands in.
    """
    pairs = [(x, y) for x in a for y in b]
    u = sum((x > y) + 0.5 * (x == y) for x, y in pairs)

    pooled = sorted([*a, *b])
    if len(pooled) > 60:
        return u, mann_whitney_normal(u, len(a), pooled)
    return u, mann_whitney_exact(u, len(a), pooled)


def mann_whitney_exact(u: float, n: int, pooled: list[float]) -> float:
    """The share of the subsets of n of the sorted values `pooled` whose U is at least u.

    A subset's U is its sum of ranks less n (n + 1) / 2. Ties have the mean of the ranks they take,
    so the sums are of twice the ranks, which are whole numbers.
    """
    backward = pooled[::-1]
    first_rank = [pooled.index(x) + 1 for x in pooled]
    last_rank = [len(pooled) - backward.index(x) for x in pooled]

    # ways[k][total]: how many subsets of k values have this total of twice their ranks
    ways = [{0: 1}] + [{} for _ in range(n)]
    for first, last in zip(first_rank, last_rank, strict=True):
        for k in range(n, 0, -1):  # downwards, so that a value joins a subset once
            for total, count in ways[k - 1].items():
                larger = total + first + last
                ways[k][larger] = ways[k].get(larger, 0) + count

    observed = 2 * u + n * (n + 1)
    as_large = sum(count for total, count in ways[n].items() if total >= observed)
    return as_large / math.comb(len(pooled), n)


def mann_whitney_normal(u: float, n: int, pooled: list[float]) -> float:
    """The same share by the normal distribution, corrected for ties and for U's steps of one."""
    size = len(pooled)
    m = size - n
    ties = sum(count**3 - count for count in Counter(pooled).values())
    variance = n * m / 12 * (size + 1 - ties / (size * (size - 1)))
    if variance == 0:
        return 1.0  # all values are equal
    z = (u - n * m / 2 - 0.5) / math.sqrt(variance)
    return 0.5 * math.erfc(z / math.sqrt(2))


def paired_bootstrap(
    a: list[float], b: list[float], resamples: int = 10_000, seed: int = 0
) -> tuple[float, float, float, float]:
    """(mean of a - b, low, high, p) over problems drawn anew with replacement.

    a and b are the accuracies [P] of two models on the same problems. low to high holds 95 % of
    the resampled means; p is the share of them that is not above 0.
    """
    difference = np.asarray(a) - np.asarray(b)  # [P]
    count = len(difference)
    drawn = np.random.default_rng(seed).integers(count, size=(resamples, count))
    means = difference[drawn].mean(axis=1)  # [resamples]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(difference.mean()), float(low), float(high), float((means <= 0).mean())


def read_scores(folder: str) -> dict:
    """What `run` wrote to an output folder. Raises UserError if it is not there, or damaged."""
    path = Path(folder) / "scores.json"
    if not path.exists():
        raise UserError(
            f"{folder} has no scores.json: run evaluate.py with --output-dir {folder} first"
        )
    scores = read_json(path, benchmarks=dict)
    for name, result in scores["benchmarks"].items():
        where = f"{path}, {name},"
        check_kinds(result, where, problems=int, repetitions=list, by_problem=list)
        accuracies = result["repetitions"] + result["by_problem"]
        if not all(isinstance(accuracy, float | int) for accuracy in accuracies):
            raise UserError(damaged(where, "an accuracy is no number"))
    return scores


def common_benchmarks(first: str, second: str, one: dict, two: dict) -> list[str]:
    """The benchmarks in both scores; `first` and `second` name their folders in a UserError."""
    names = [name for name in one["benchmarks"] if name in two["benchmarks"]]
    if not names:
        raise UserError(f"{first} and {second} have no benchmark in common")
    for name in names:
        here = one["benchmarks"][name]["problems"]
        there = two["benchmarks"][name]["problems"]
        if here != there:
            raise UserError(
                f"{name} has {here} problems in {first} and {there} in {second}: "
                "evaluate both on the same set"
            )
    return names


def whole_repetitions(scores: dict, names: list[str]) -> list[float]:
    """The question-weighted average of each of the n repetitions of all benchmarks (App. K)."""
    benchmarks = [scores["benchmarks"][name] for name in names]
    sizes = [benchmark["problems"] for benchmark in benchmarks]
    repetitions = zip(*(benchmark["repetitions"] for benchmark in benchmarks), strict=True)
    return [weighted_average(repetition, sizes) for repetition in repetitions]


def accuracy_by_problem(scores: dict, names: list[str]) -> list[float]:
    """The accuracy on each problem, one benchmark after the other."""
    return [x for name in names for x in scores["benchmarks"][name]["by_problem"]]


def compare(*folders: str) -> None:
    """Print whether the model evaluated in the first folder beats that in the second.

    Counted are the benchmarks on which both were evaluated. Raises UserError if there is none.
    """
    if len(folders) != 2:
        raise UserError("compare takes two output folders: python evaluate.py compare A B")
    first, second = folders
    one = read_scores(first)
    two = read_scores(second)
    names = common_benchmarks(first, second, one, two)

    a = whole_repetitions(one, names)
    b = whole_repetitions(two, names)
    u, p = mann_whitney(a, b)  # App. K
    mean, low, high, p_problems = paired_bootstrap(
        accuracy_by_problem(one, names), accuracy_by_problem(two, names)
    )

    print(f"{first} {np.mean(a):.4f}, {second} {np.mean(b):.4f} on {', '.join(names)}")
    print(
        f"over repetitions: U = {u:g} of {len(a) * len(b)}, "
        f"one-sided p = {p:.3g} (Mann-Whitney, App. K)"
    )
    print(
        f"over problems: difference {mean:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}, "
        f"p = {p_problems:.3g} (paired bootstrap)"
    )


# ---- the program ---------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    """`evaluate.py compare A B`, or an evaluation; a UserError is one line and exit code 2."""
    if argv is None:
        argv = sys.argv[1:]
    try:
        if argv[:1] == ["compare"]:
            compare(*argv[1:])
            return
        parser = Parser(GROUPS, prog="evaluate.py", description=__doc__.splitlines()[0])
        run(Config(**vars(parser.parse_args(argv))))
    except UserError as error:
        leave(f"evaluate.py: {error}", 2)
    except KeyboardInterrupt:
        leave("evaluate.py: stopped by Ctrl-C: the same command continues", 128 + signal.SIGINT)


if __name__ == "__main__":
    main()
