"""The Hugging Face hub: the data sets with known names, and requests with a short timeout.

SOURCES lists the paper's training sets (Sec. 5), its benchmarks (Table 1) and its sets from other
domains.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import datasets
import huggingface_hub
from datasets import load_dataset
from datasets.exceptions import DatasetsError
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from infra.errors import UserError, first_line
from infra.ranks import speaks
from infra.tables import LOCAL, cell_text
from programs.problems import (
    eurus_problem,
    humaneval_problem,
    livecodebench_problem,
    mbpp_problem,
)

PATIENCE = 3.0  # timeout of a request to the hub, seconds


def asked_once(ask: Callable, *arguments, **named):
    """ask(*arguments, **named), or None if the hub lacks the item or cannot be reached.

    ask: HfApi().model_info or .dataset_info. The libraries would retry for half a minute, and wait
    forever for a proxy that does not answer. If the hub cannot be reached, this function makes them
    use files on disk or fail at once.
    """
    try:
        return ask(*arguments, **named, timeout=PATIENCE)
    except (HfHubHTTPError, ValueError):
        return None  # the hub has answered; loading will report the error
    except Exception:  # DNS, routing and proxy errors have different classes
        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
        return None


# ---- data sets -----------------------------------------------------------------------------------


def multiple_choice(question: str, options: list, right: str) -> dict:
    """A question with its options listed below it; `right` is the letter of the right option."""
    lettered = zip("ABCDEFGHIJ", options, strict=False)
    listed = "\n".join(f"({letter}) {cell_text(option)}" for letter, option in lettered)
    problem = f"{cell_text(question)}\n{listed}\nAnswer with the letter."
    return {"problem": problem, "answer": right, "choice": True}


def gpqa_problem(cells: dict, index: int) -> dict:
    """A GPQA row has the right and three wrong answers, shuffled with the row number as seed."""
    right = cells["Correct Answer"]
    options = [right, *(cells[f"Incorrect Answer {i}"] for i in (1, 2, 3))]
    random.Random(index).shuffle(options)
    return multiple_choice(cells["Question"], options, "ABCD"[options.index(right)])


def mmlu_pro_problem(cells: dict, index: int) -> dict:
    """An MMLU-Pro row has up to ten options and the letter of the right one."""
    return multiple_choice(cells["question"], cells["options"], cells["answer"])


@dataclass(frozen=True)
class Source:
    """A data set on the hub, and how to find the problems in it."""

    hub: str
    revision: str | None = None  # a commit, branch or tag; None: the newest
    options: dict = field(default_factory=lambda: {"split": "train"})  # passed to load_dataset
    problem_column: str = "problem"
    answer_column: str = "answer"
    sample: int | None = None  # a fixed random sample of this many problems
    read: Callable[[dict, int], dict] | None = None  # (cells, row number) -> problem
    only: tuple[str, str] | None = None  # use only rows with this (column, value)


LIVECODEBENCH = [  # release_v6, the complete set; the paper does not name its release
    f"hf://datasets/livecodebench/code_generation_lite/test{number}.jsonl"
    for number in ("", 2, 3, 4, 5, 6)
]

SOURCES = {
    "deepmath": Source(
        hub="zwhe99/DeepMath-103K",
        options={"split": "train", "columns": ["question", "final_answer"]},  # without solutions
        problem_column="question",
        answer_column="final_answer",
    ),
    "aime24": Source("HuggingFaceH4/aime_2024"),
    "aime25": Source("MathArena/aime_2025"),
    "aime26": Source("MathArena/aime_2026"),
    "hmmt25_feb": Source("MathArena/hmmt_feb_2025"),
    "hmmt25_nov": Source("MathArena/hmmt_nov_2025"),
    "hmmt26_feb": Source("MathArena/hmmt_feb_2026"),
    "brumo25": Source("MathArena/brumo_2025"),
    "gpqa_diamond": Source(
        hub="Idavidrein/gpqa",
        options={"name": "gpqa_diamond", "split": "train"},
        problem_column="Question",
        answer_column="Correct Answer",
        read=gpqa_problem,
    ),
    "mmlu_pro": Source(
        hub="TIGER-Lab/MMLU-Pro",
        options={"split": "test"},
        problem_column="question",
        sample=600,  # of 12,032, as in the paper
        read=mmlu_pro_problem,
    ),
    "eurus2_rl_code": Source(
        hub="PRIME-RL/Eurus-2-RL-Data",
        problem_column="prompt",
        answer_column="reward_model",
        only=("ability", "code"),
        read=eurus_problem,
    ),
    "humaneval_plus": Source(
        hub="evalplus/humanevalplus",
        options={"split": "test"},
        problem_column="prompt",
        answer_column="test",
        read=humaneval_problem,
    ),
    "mbpp_plus": Source(
        hub="evalplus/mbppplus",
        options={"split": "test"},
        problem_column="prompt",
        answer_column="test",
        read=mbpp_problem,
    ),
    "livecodebench": Source(
        hub="json",  # read as files, because datasets no longer runs loading scripts
        options={"split": "train", "data_files": LIVECODEBENCH},
        problem_column="question_content",
        answer_column="private_test_cases",
        read=livecodebench_problem,
    ),
}


def hub_rows(name: str, source: Source, flag: str) -> list[dict]:
    """The rows of a set on the hub. The first rank prints the set's commit.

    Raises UserError if the set cannot be loaded.
    """
    known = asked_once(HfApi().dataset_info, source.hub, revision=source.revision)
    revision = known.sha if known else source.revision
    if speaks():
        print(f"{name}: {source.hub} at revision {revision or 'unknown'}")
    try:
        table = load_dataset(source.hub, revision=revision, **source.options)
        if source.only:
            column, wanted = source.only
            table = table.filter(wanted.__eq__, input_columns=column)
        return table.to_list()
    except (OSError, ValueError, DatasetsError) as error:
        # Missing set or split, no network, or no access.
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(
            f"cannot load {name}, the value or default of {flag} ({reason}): pass one of "
            f"{', '.join(SOURCES)}, a local file ({', '.join(LOCAL)}), or a hub id you can reach"
        ) from error
