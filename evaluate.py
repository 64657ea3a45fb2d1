"""The paper's evaluation (App. I), and its test of whether one model beats another (App. K).

    python evaluate.py --model DIR --benchmarks aime24,aime25            sample, grade, summarise
    torchrun --nproc_per_node 8 evaluate.py --model DIR                  all seven, on eight GPUs
    python evaluate.py --model DIR --benchmarks aime24,aime25 --regrade  grade saved responses again
    python evaluate.py compare A B         two output folders: does A's model beat B's?

A benchmark's responses are in <output-dir>/<benchmark>/responses.jsonl once all have finished. If
a run is interrupted, the same command goes on with the next benchmark. The folder is refused with
another model, with the same model after further training, and with other sampling flags.
averages.json holds the averages and the input to `compare`; wrong.jsonl holds the wrong responses.

Beside App. K's test, `compare` reports a paired bootstrap over problems, which the paper does not
have: repetitions do not measure the variation across problems.

Shapes: P problems in a benchmark, n samples per problem, i.e. n repetitions of the benchmark.
"""

import math
import os
import sys
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from answers.comparison import UNDECIDED
from infra import folder as files
from infra import ranks
from infra.errors import UserError, one_line_endings
from infra.evaluation_files import load_benchmarks, saved_responses, write_averages
from infra.flags import Parser, flag, spelled
from infra.grading import grade_on_ranks
from infra.loading import computation_dtype, load_model
from infra.log import shown_prompt
from infra.model_files import PROMPT, locate
from infra.problems import (
    PROMPT_FLAGS,
    encode_prompts,
    prepare_grading,
    prompt_flags,
    refuse_length,
)
from infra.ranks import DTYPES, on_first_rank
from infra.tokens import end_tokens, stop_texts
from rollout import rollout

PAPER_BENCHMARKS = "aime24,aime25,aime26,hmmt25_feb,hmmt25_nov,hmmt26_feb,brumo25"  # Table 1

# A folder holds the responses of one model, sampled with one setting of these flags.
SAMPLING_FLAGS = ("temperature", "top_p", "max_new_tokens", "seed", *PROMPT_FLAGS, "stop", "dtype")
# The folder's identity has the prompts of these two problems instead of the benchmarks', so that
# benchmarks may join later, with the same template.
EXAMPLES = [{"problem": "1+1?"}, {"problem": "1+1?", "tests": [0]}]


@dataclass
class Settings:
    """Every flag of an evaluation."""

    model: str = flag("", "Hugging Face folder or hub id")
    benchmarks: str = flag(PAPER_BENCHMARKS, "comma-separated: known sets, local files or hub ids")
    samples: int = flag(16, "responses per problem, the n of avg@n", low=1, high=10**4)
    temperature: float = flag(1.0, "for sampling; 0: the likeliest token, one sample", low=0)
    top_p: float = flag(0.7, "nucleus sampling", above=0, high=1)
    max_new_tokens: int = flag(30000, "longest response, tokens", low=1)
    limit: int = flag(0, "evaluate only the first problems of each benchmark; 0: all", low=0)
    regrade: bool = flag(False, "grade the saved responses again; samples nothing")
    output_dir: str = flag("", "default: <model>-evaluation, or evaluation/<name> for a hub id")
    problem_column: str = flag("problem", "problem column, for a set without a known name")
    answer_column: str = flag("answer", "answer column, for a set without a known name")
    reward: str = flag("", "a function of your own, FILE.py:FUNCTION; default: verify.py's")
    prompt_template: str = flag("", "a prompt with {problem} in it; default: the run's, if any")
    system: str = flag("", "a system message before each problem, for the chat template")
    template_args: str = flag("", "for the chat template, such as '{\"enable_thinking\": false}'")
    stop: str = flag("", "text that ends a response, as an end token does; several: a JSON list")
    seed: int = flag(0, "for sampling", low=0, high=10**12)
    in_flight: int = flag(256, "max responses that a rank samples at once", low=1)
    dtype: str = flag("auto", "of the computation, auto is bfloat16 if a GPU has it", DTYPES)


# ---- averages ------------------------------------------------------------------------------------


def summary(grades: np.ndarray) -> dict:
    """A benchmark's averages from its grades [P, n], for averages.json.

    avg, pass: avg@n and pass@n (a problem passes if any of its n responses is right).
    stderr: the standard error of avg@n over problems; None for a single problem.
    repetitions: the accuracy in each repetition (App. K). by_problem: the accuracy on each problem.
    """
    by_problem = grades.mean(axis=1)  # [P]
    standard_error = None
    if len(grades) > 1:
        standard_error = float(by_problem.std(ddof=1) / math.sqrt(len(grades)))

    return {
        "problems": len(grades),
        "avg": float(by_problem.mean()),
        "pass": float(grades.max(axis=1).mean()),
        "stderr": standard_error,
        "repetitions": grades.mean(axis=0).tolist(),  # [n]
        "by_problem": by_problem.tolist(),
    }


# ---- an evaluation -------------------------------------------------------------------------------


def run(cfg: Settings) -> dict:
    """Sample (unless --regrade), grade and summarise. Rank 0 writes averages.json and prints it.

    Returns the contents of averages.json. All ranks call this. Raises UserError.
    """
    ranks.start_ranks()
    located = () if cfg.regrade else locate(cfg.model)  # reads no weights yet
    benchmarks = load_benchmarks(cfg)  # name -> problems
    prepare_grading(sum(benchmarks.values(), []), cfg.reward)
    folder = Path(cfg.output_dir)
    written = (*benchmarks, "averages.json")
    if cfg.regrade:
        settings = files.read_json(folder / "config.json")  # as `sample` wrote it
        on_first_rank(files.claim, folder, settings, written, Settings)
    else:
        settings = sample(cfg, located, benchmarks, folder, written)  # claims the folder, too

    results = {}
    for name, problems in benchmarks.items():
        grades = grade_benchmark(problems, cfg.samples, folder / name, cfg.reward)  # [P, n]
        results[name] = summary(grades) | {"hash": files.hash_of(problems)}
    by_problem = [x for result in results.values() for x in result["by_problem"]]
    averages = {
        "model": settings["model"],
        "reward": cfg.reward,
        "sampling": {x: settings.get(x) for x in SAMPLING_FLAGS} | {"samples": cfg.samples},
        "average": float(np.mean(by_problem)),  # each problem counts alike, as in Table 1
        "benchmarks": results,
    }
    on_first_rank(write_averages, averages, folder)
    undecided = sum(ranks.from_all_ranks(UNDECIDED.total()))
    if undecided and ranks.is_first_rank():
        print(f"{undecided} answers earned 0 because their comparison ended at its budget")
    return averages


def sample(
    cfg: Settings, located: tuple, benchmarks: dict, folder: Path, written: tuple[str, ...]
) -> dict:
    """Claim the folder, and sample the responses it lacks. Returns the folder's settings.

    located: what model_files.locate returns.
    """
    model, model_config, tokenizer = located
    encoding = (tokenizer, math.inf, *prompt_flags(cfg).values())
    prompts = {}  # benchmark -> token ids
    for name, problems in benchmarks.items():
        _, prompts[name] = encode_prompts(problems, *encoding)
        refuse_length(model_config, prompts[name], cfg.max_new_tokens)
    _, examples = encode_prompts(EXAMPLES, *encoding)
    flags = {name: getattr(cfg, name) for name in SAMPLING_FLAGS}
    dtype = computation_dtype(cfg.dtype)
    flags["dtype"] = str(dtype).removeprefix("torch.")  # auto may differ on another machine
    identity = partial(files.identity_of, "evaluate", flags, model, prompts=examples)
    settings = on_first_rank(identity)
    on_first_rank(files.claim, folder, settings, written, Settings)
    first, *_ = prompts.values()
    lm, tokenizer = load_model(model, dtype)
    settings |= {"model": cfg.model}  # `claim` compares neither this nor what follows
    settings |= shown_prompt(tokenizer, first[0], end_tokens(lm, tokenizer))
    on_first_rank(files.write_json, folder / "config.json", settings)
    for name, problems in benchmarks.items():
        sample_benchmark(cfg, lm, tokenizer, problems, prompts[name], folder / name)
    return settings


def sample_benchmark(
    cfg: Settings, lm, tokenizer, problems: list[dict], prompts: list[list[int]], folder: Path
) -> None:
    """Sample the responses to a benchmark that its folder lacks, and write them all at once.

    A response depends only on (seed, benchmark, problem, sample). All ranks call this.
    """
    saved = on_first_rank(saved_responses, folder)
    wanted = [(i, sample) for i in range(len(problems)) for sample in range(cfg.samples)]
    wanted = [(i, sample) for i, sample in wanted if (problems[i]["problem"], sample) not in saved]
    if not wanted:
        return
    stream = int.from_bytes(sha256(folder.name.encode()).digest()[:8])  # no benchmarks share draws
    keys = [(cfg.seed, stream, i, sample) for i, sample in wanted]
    responses = rollout(
        lm,
        tokenizer,
        [prompts[i] for i, _ in wanted],
        keys,
        max_new_tokens=cfg.max_new_tokens,
        temperature=cfg.temperature,
        top_p=cfg.top_p,
        in_flight=cfg.in_flight,
        stop=cfg.stop,
    )
    new = [
        {
            "asked": problems[i]["problem"],
            "sample": sample,
            "response": response.text,
            "tokens": len(response.tokens),
            "truncated": response.truncated,
        }
        for (i, sample), response in zip(wanted, responses, strict=True)
    ]
    on_first_rank(files.write_lines, folder / "responses.jsonl", [*saved.values(), *new])


def grade_benchmark(
    problems: list[dict], samples: int, folder: Path, reward: str = ""
) -> np.ndarray:
    """Grades [P, n] of the responses in `folder`. Writes those graded below 1 to wrong.jsonl.

    reward: --reward. All ranks call this. Raises UserError if responses are missing.
    """
    saved = on_first_rank(saved_responses, folder)
    # The texts are unique, because load_problems drops repeats.
    places = [(problem["problem"], sample) for problem in problems for sample in range(samples)]
    lines = [saved.get(place) for place in places]
    missing = lines.count(None)
    if missing:
        raise UserError(f"{folder} lacks {missing} of {len(lines)} responses: drop --regrade")
    responses = [
        SimpleNamespace(text=line["response"], truncated=line["truncated"]) for line in lines
    ]
    repeated = [problem for problem in problems for _ in range(samples)]
    rewards = grade_on_ranks(responses, repeated, reward)
    wrong = [
        line | {"answer": problem.get("answer")} | ({"reward": grade} if reward else {})
        for line, problem, grade in zip(lines, repeated, rewards, strict=True)
        if grade < 1
    ]
    on_first_rank(files.write_lines, folder / "wrong.jsonl", wrong)
    return np.array(rewards).reshape(len(problems), samples)


# ---- comparison of two models --------------------------------------------------------------------


def whole_repetitions(averages: dict, names: list[str]) -> list[float]:
    """The accuracy over all problems of the benchmarks, in each of the n repetitions (App. K)."""
    benchmarks = [averages["benchmarks"][name] for name in names]
    sizes = [benchmark["problems"] for benchmark in benchmarks]
    repetitions = [benchmark["repetitions"] for benchmark in benchmarks]
    # Rounding makes equal values tie, whatever the order of summation.
    return np.average(repetitions, axis=0, weights=sizes).round(12).tolist()


def compare(*folders: str) -> None:
    """Print whether the model evaluated in the first folder beats the model in the second.

    Uses the benchmarks that both have. Raises UserError if there are none, or their problems or
    rewards differ.
    """
    if len(folders) != 2:
        raise UserError("compare takes two output folders: python evaluate.py compare A B")
    first, second = folders
    a, b = (files.read_json(Path(folder) / "averages.json") for folder in folders)
    names = [name for name in a["benchmarks"] if name in b["benchmarks"]]
    if not names:
        raise UserError(f"{first} and {second} have no benchmark in common")
    for name in names:
        if a["benchmarks"][name]["hash"] != b["benchmarks"][name]["hash"]:
            raise UserError(
                f"{name}: {first} and {second} have different problems, or order them differently: "
                "run evaluate.py --regrade for both with the same data"
            )
    if a.get("reward", "") != b.get("reward", ""):
        raise UserError(
            f"{first} and {second} were graded by different rewards: run evaluate.py --regrade for "
            "both with the same --reward"
        )
    if a["sampling"] != b["sampling"]:
        print(f"sampled differently: {first} {a['sampling']}, {second} {b['sampling']}")

    from infra.significance import mann_whitney, paired_bootstrap

    repetitions = whole_repetitions(a, names), whole_repetitions(b, names)  # [n] each
    u, p = mann_whitney(*repetitions)  # App. K
    accuracies = [
        [x for name in names for x in averages["benchmarks"][name]["by_problem"]]
        for averages in (a, b)
    ]
    mean, low, high, p_problems = paired_bootstrap(*accuracies)

    means = [np.mean(accuracy) for accuracy in repetitions]
    print(f"{first} {means[0]:.4f}, {second} {means[1]:.4f} on {', '.join(names)}")
    print(
        f"over repetitions: U = {u:g} of {len(repetitions[0]) * len(repetitions[1])}, "
        f"one-sided p = {p:.3g} (Mann-Whitney, App. K)\n"
        f"over problems: difference {mean:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}, "
        f"p = {p_problems:.3g} (paired bootstrap)"
    )


# ---- the program ---------------------------------------------------------------------------------


def parse_config(argv: list[str]) -> Settings:
    """Parse a command line, and fill in --output-dir. Raises UserError."""
    parser = Parser(Settings, "evaluate.py", __doc__.splitlines()[0])
    given = vars(parser.parse_args(argv))
    cfg = Settings(**given)
    if not cfg.model and not cfg.output_dir:
        raise UserError("--model DIR is required (or --output-dir with --regrade)")
    model = Path(cfg.model)
    beside = f"{model.resolve()}-evaluation"
    default = beside if model.is_dir() else f"evaluation/{model.name}"
    cfg.model = str(model)  # without a trailing slash
    cfg.output_dir = cfg.output_dir or default
    if cfg.regrade:
        take_saved_settings(cfg, given)
    elif (model / PROMPT).exists():
        ask_as_trained(cfg, given, files.read_json(model / PROMPT))
    if cfg.temperature == 0:
        cfg.samples = 1  # all would be the same
    stop_texts(cfg.stop)  # raises
    return cfg


def take_saved_settings(cfg: Settings, given: dict) -> None:
    """Give cfg the model and the sampling flags of its folder. Raises UserError for others."""
    saved = files.read_json(Path(cfg.output_dir) / "config.json")
    for name in ("model", *SAMPLING_FLAGS):
        value = saved.get(name, getattr(Settings, name))  # an older folder had the default
        if name in given and getattr(cfg, name) not in (value, "auto"):
            raise UserError(
                f"--regrade samples nothing, and the responses in {cfg.output_dir} have "
                f"{spelled(name)} {value}: drop {spelled(name)} {given[name]}"
            )
        setattr(cfg, name, value)


def ask_as_trained(cfg: Settings, given: dict, trained: dict) -> None:
    """Give cfg the prompt flags and --stop of its model's training, unless a flag sets one."""
    if not given.keys() & trained.keys():
        for name, value in trained.items():
            setattr(cfg, name, value)
        return
    asked = {name: getattr(cfg, name) for name in trained}
    if asked != trained and int(os.environ.get("RANK", 0)) == 0:
        print(f"{cfg.model} was trained with other prompts: {trained}", flush=True)


def main(argv: list[str] | None = None) -> None:
    """Run `compare A B` or an evaluation. A UserError prints one line and exits with code 2."""
    argv = sys.argv[1:] if argv is None else argv
    with one_line_endings("evaluate.py"):
        if argv[:1] == ["compare"]:
            compare(*argv[1:])
            return
        run(parse_config(argv))
        ranks.end_ranks()


if __name__ == "__main__":
    main()
