"""Loads problems from the toy, a local file or the hub, and encodes their prompts.

A problem is {"problem": str, "answer": str}. Programming problems have "tests" instead of an answer
(programs/problems.py). SOURCES lists the paper's training set (Sec. 5) and its benchmarks (Table
1). Any other set works with --problem-column and --answer-column.
"""

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import datasets
from datasets.exceptions import DatasetsError

from infra.errors import UserError, first_line
from infra.hub import prefer_cache
from infra.ranks import speaks
from programs import ProgramsError
from programs.problems import CODE_INSTRUCTION, checked_tests
from programs.sandbox.client import start_sandbox
from toy.by_name import SETS, problem_set

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
LOCAL = (".jsonl", ".csv", ".parquet")  # file suffixes
SOURCES = {  # name -> hub id, problem column, answer column
    "deepmath": ("zwhe99/DeepMath-103K", "question", "final_answer"),
    "aime24": ("HuggingFaceH4/aime_2024", "problem", "answer"),
    "aime25": ("MathArena/aime_2025", "problem", "answer"),
    "aime26": ("MathArena/aime_2026", "problem", "answer"),
    "hmmt25_feb": ("MathArena/hmmt_feb_2025", "problem", "answer"),
    "hmmt25_nov": ("MathArena/hmmt_nov_2025", "problem", "answer"),
    "hmmt26_feb": ("MathArena/hmmt_feb_2026", "problem", "answer"),
    "brumo25": ("MathArena/brumo_2025", "problem", "answer"),
}


# ---- tables --------------------------------------------------------------------------------------


def load_problems(
    name: str,
    problem_column: str = "problem",
    answer_column: str = "answer",
    toy_k: int = 5,
    seed: int = 0,
    flag: str = "--data",
) -> list[dict]:
    """The problems of `name`: the toy, a name in SOURCES, a local file or a hub id.

    A hub id may name a revision: owner/set@1.2. Records without a text or an answer are dropped,
    and so are repeated problems; the first rank prints how many. Error messages name `flag`. Raises
    UserError for an unreadable set, a missing column, a cell that is neither text nor number, or
    no remaining problem.
    """
    if name in SETS:
        return problem_set(name, toy_k, seed)

    hub, problem_column, answer_column = SOURCES.get(name, (name, problem_column, answer_column))
    try:
        records = read_file(Path(name)) if Path(name).suffix in LOCAL else read_hub(hub)
    except (OSError, ValueError, csv.Error, DatasetsError) as error:
        raise UserError(
            f"cannot load {flag} {name!r} ({type(error).__name__}: {first_line(error)}): pass one "
            f"of {', '.join(SOURCES)}, a file ({', '.join(LOCAL)}) or a hub id"
        ) from error
    columns = dict.fromkeys(column for record in records for column in record)
    answer_column = "tests" if "tests" in columns else answer_column
    for column in (problem_column, answer_column):
        if column not in columns:
            raise UserError(
                f"{flag} {name} has no column {column}, only {', '.join(map(str, columns))}: see "
                "--problem-column, --answer-column"
            )

    problems = {}  # by their text; the first of several with the same text
    for number, record in enumerate(records, start=1):
        where = f"{flag} {name}, record {number},"
        text = cell_text(record.get(problem_column), where)
        cell = record.get(answer_column)
        if answer_column == "tests":
            problem = {"problem": text, "tests": tests_of(cell, where)}
        else:
            problem = {"problem": text, "answer": cell_text(cell, where)}
        if all(problem.values()):
            problems.setdefault(text, problem)
    if len(problems) < len(records) and speaks():
        dropped = len(records) - len(problems)
        print(f"{name}: {dropped} of {len(records)} records dropped: gaps or repeats")
    if not problems:
        raise UserError(f"{flag} {name} holds no problem with an answer")
    return list(problems.values())


def read_file(path: Path) -> list[dict]:
    """The records of a table. Raises OSError, ValueError, csv.Error or DatasetsError.

    datasets would turn text such as 2024-01-02 into a date, and round integers above 2^53.
    """
    if path.suffix == ".parquet":
        return datasets.load_dataset("parquet", data_files=str(path), split="train").to_list()
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        records = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    else:
        records = [json.loads(line) for line in text.split("\n") if line.strip()]
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict) or None in record:
            raise ValueError(f"record {number} is not a dictionary, or longer than the header")
    return records


def read_hub(name: str) -> list[dict]:
    """The records of a set's training split. Raises OSError, ValueError or DatasetsError."""
    prefer_cache()
    hub, _, revision = name.partition("@")
    return datasets.load_dataset(hub, revision=revision or None, split="train").to_list()


def cell_text(value, where: str) -> str:
    """A cell as text; empty for a gap. Raises UserError unless it is a text or a number."""
    if value is None or value != value:  # a gap, which is NaN in a column of numbers
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise UserError(f"{where} holds a {type(value).__name__}: write a string or a number")
    if isinstance(value, float) and value.is_integer():  # a column with gaps holds floats
        value = int(value)
    return str(value).strip()


def tests_of(cell, where: str) -> list[dict]:
    """The tests in a cell. Raises UserError for an invalid test."""
    try:
        return checked_tests(cell, where)
    except ProgramsError as error:
        raise UserError(error) from error


def prepare_sandbox(problems: list[dict], mode: str) -> None:
    """If any problem has tests, start the program sandbox that --code-sandbox selects.

    The first rank prints the sandbox's protections. Raises UserError if any is missing.
    """
    if any("tests" in each for each in problems):
        try:
            walls = start_sandbox(mode)
        except ProgramsError as error:
            raise UserError(error) from error
        if speaks():
            print(walls, flush=True)


def load_sets(cfg) -> tuple[list[dict], list[dict]]:
    """(training problems, held-out problems) of a train.Config; starts the sandbox if they need it.

    Raises UserError.
    """
    columns = (cfg.problem_column, cfg.answer_column, cfg.toy_k, cfg.seed)
    problems = load_problems(cfg.data, *columns)
    held_out = load_problems(cfg.eval_data, *columns, "--eval-data") if cfg.eval_data else []
    prepare_sandbox(problems + held_out, cfg.code_sandbox)
    return problems, held_out


# ---- prompts -------------------------------------------------------------------------------------


def encode_prompts(
    problems: list[dict], tokenizer, limit: int, template: str = ""
) -> tuple[list[dict], list[list[int]]]:
    """(problems, prompts): the problems that are kept, and the token ids of their prompts.

    Problems whose prompts exceed `limit` tokens are dropped, and the first rank prints how many. A
    literal `\\n` in the template, as typed in a shell, is a line break. Raises UserError if no
    problem remains or the template has no {problem}.
    """
    if template and "{problem}" not in template:
        raise UserError(f"--prompt-template {template!r} has no {{problem}}")
    template = template.replace("\\n", "\n")
    prompts = [encode_prompt(each, tokenizer, template) for each in problems]
    fits = [i for i, prompt in enumerate(prompts) if 0 < len(prompt) <= limit]
    if problems and not fits:
        raise UserError(f"every prompt exceeds --max-prompt-tokens {limit}: raise it")
    if len(fits) < len(problems) and speaks():
        dropped = len(problems) - len(fits)
        print(f"{dropped} of {len(problems)} prompts dropped: above --max-prompt-tokens {limit}")
    return [problems[i] for i in fits], [prompts[i] for i in fits]


def encode_prompt(problem: dict, tokenizer, template: str) -> list[int]:
    """Token ids of a prompt: with `template`, else the chat template, else the text alone."""
    text = problem["problem"]
    if template or not tokenizer.chat_template:
        return tokenizer(template.replace("{problem}", text) or text).input_ids
    instruction = CODE_INSTRUCTION if problem.get("tests") else INSTRUCTION
    chat = [{"role": "user", "content": f"{text}\n{instruction}"}]
    encoded = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
    return encoded["input_ids"]


def refuse_length(config, prompts: list[list[int]], max_new_tokens: int) -> None:
    """Raise UserError if a prompt and its response may exceed the model's positions."""
    limit = getattr(config, "max_position_embeddings", None)
    scheme = getattr(config, "rope_parameters", None) or {}
    if scheme.get("rope_type") == "longrope":
        # Beyond this limit, the longest sequence in a batch sets the frequencies for all.
        limit = min(limit, scheme["original_max_position_embeddings"])
    longest = max((len(prompt) for prompt in prompts), default=0)
    if limit and longest + max_new_tokens > limit:
        raise UserError(
            f"--max-new-tokens {max_new_tokens} after a prompt of {longest} tokens exceeds the "
            f"{limit} tokens that the positions of this {config.model_type} support: "
            f"lower it to {max(0, limit - longest)}; if a scheme such as yarn extends the "
            "positions, raise max_position_embeddings in config.json"
        )
