"""Flags for evaluate.py; the defaults are the paper's (App. I)."""

from dataclasses import dataclass
from pathlib import Path

from infra.errors import UserError
from infra.flags import (
    Parser,
    SamplingFlags,
    TaskFlags,
    check_limits,
    flag,
    spelled,
)

PAPER = "aime24,aime25,aime26,hmmt25_feb,hmmt25_nov,hmmt26_feb,brumo25"  # Table 1


@dataclass
class BenchmarkFlags:
    """The benchmarks and their sampling."""

    heading = "evaluation"

    benchmarks: str = flag(PAPER, "comma-separated: known sets, local files or hub ids")
    samples: int = flag(16, "responses per problem, the n of avg@n", low=1)
    top_p: float = flag(0.7, "nucleus sampling", above=0, high=1)
    limit: int = flag(0, "evaluate only the first problems of each benchmark; 0: all", low=0)
    regrade: bool = flag(False, "grade the saved responses again; samples nothing")


@dataclass
class BenchmarkSamplingFlags(SamplingFlags):
    """The sampling flags that train.py has, with longer responses."""

    max_new_tokens: int = flag(30000, "longest response, tokens", low=1)


@dataclass
class BenchmarkMemoryFlags:
    """This flag affects the results only through rounding: see rollout.py."""

    heading = "memory"

    rollout_rows: int = flag(256, "max responses that a rank samples at once (ours)", low=1)


@dataclass
class BenchmarkRunFlags:
    """The folder for responses and averages."""

    heading = "run"

    output_dir: str = flag("", "default: <model>-evaluation, or evaluation/<name> for a hub id")


@dataclass
class Config(
    BenchmarkRunFlags, TaskFlags, BenchmarkFlags, BenchmarkSamplingFlags, BenchmarkMemoryFlags
):
    """All flags for an evaluation."""


GROUPS = list(Config.__bases__)  # each under its heading in --help


def evaluation_config(argv: list[str], description: str) -> Config:
    """Parse a command line. Raises UserError for flags that are unknown or out of range."""
    parser = Parser(GROUPS, prog="evaluate.py", description=description)
    config = Config(**vars(parser.parse_args(argv)))
    check_limits(config)
    return config


def sampling_settings(config: Config) -> dict:
    """Flag -> value, for the flags that determine the responses to a problem."""
    names = ("temperature", "top_p", "max_new_tokens", "seed", "prompt_template")
    return {spelled(name): getattr(config, name) for name in names}


def output_folder(config: Config) -> Path:
    """--output-dir, else <model>-evaluation next to the model's folder, or evaluation/<name>.

    Raises UserError if neither a model nor a folder is given, or the output would be inside the
    model's folder, which training may replace with a better model.
    """
    if not config.model and not config.output_dir:
        raise UserError("--model DIR is required (or --output-dir with --regrade)")
    model = Path(config.model)
    if config.output_dir:
        folder = Path(config.output_dir)
        if config.model and model.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise UserError(
                f"--output-dir {folder} is inside the folder of --model {model}: choose another"
            )
        return folder
    if model.is_dir():
        return model.resolve().with_name(model.resolve().name + "-evaluation")
    return Path("evaluation") / model.name
