"""Loads problems from the toy, a local file or the hub, and encodes their prompts.

A problem is {"problem": str, "answer": str}. infra/hub.py lists the sets with known names. Any
other set works with --problem-column and --answer-column. Multiple-choice problems have "choice":
True and a letter as the answer. Programming problems have "tests" instead (programs/problems.py).
"""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

from infra.errors import UserError, first_line
from infra.hub import SOURCES, Source, hub_rows
from infra.ranks import speaks
from infra.tables import LOCAL, checked_text, joined_members, read_table
from programs.problems import CODE_INSTRUCTION, checked_tests, layout_of
from programs.sandbox.client import start_sandbox
from toy.by_name import SETS, problem_set

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
SEED_STRIDE = 1_000_003  # a prime: the seeds of random streams are SEED_STRIDE * seed + number


def load_problems(
    name: str,
    problem_column: str = "problem",
    answer_column: str = "answer",
    toy_k: int = 5,
    seed: int = 0,
    flag: str = "--data",
) -> list[dict]:
    """The problems of `name`: the toy, a name in SOURCES, a local file or a hub id.

    Local files end in .jsonl, .json, .csv or .parquet. A hub id may name a revision: owner/set@1.2.
    Empty and repeated problems are dropped, and the first rank prints how many of each. Error
    messages name `flag`.

    Raises UserError for a missing or unreadable set, a missing column, a cell that is neither text
    nor number, or no remaining problem; ProgramsError for invalid tests.
    """
    if name in SETS:
        return problem_set(name, toy_k, seed)

    if not name:
        raise UserError(
            f"{flag} is empty: name a known set ({', '.join(SOURCES)}), a local file "
            f"({', '.join(LOCAL)}) or a hub id"
        )

    source = SOURCES.get(name)
    if source is None:
        hub, _, revision = name.partition("@")
        source = Source(hub, revision or None, {"split": "train"}, problem_column, answer_column)

    rows = read_table(name) if Path(name).suffix in LOCAL else hub_rows(name, source, flag)
    if source.sample:
        size = min(source.sample, len(rows))
        chosen = random.Random(0).sample(range(len(rows)), size)
        rows = [rows[i] for i in chosen]
    source = with_layout(source, rows)
    check_columns(name, source, rows)

    found = [read_problem(name, source, row, index) for index, row in enumerate(rows)]
    problems, dropped = without_gaps_and_repeats(found)
    if dropped and speaks():
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        print(f"{name}: {dropped.total()} of {len(found)} problems dropped: {reasons}")
    if not problems:
        raise UserError(f"{name} holds no problem with an answer")
    return problems


def with_layout(source: Source, rows: list[dict]) -> Source:
    """The source, with a known programming set's reader if it has the columns of that set."""
    columns = {column for row in rows for column in row}
    named = {source.problem_column, source.answer_column} <= columns or "tests" in columns
    layout = layout_of(columns)
    if source.read or named or layout is None:
        return source
    (problem_column, answer_column, *_), read = layout
    return replace(source, read=read, problem_column=problem_column, answer_column=answer_column)


def check_columns(name: str, source: Source, rows: list[dict]) -> None:
    """Raise UserError if a column that the source needs is missing from every row."""
    there = dict.fromkeys(column for row in rows for column in row)  # in the file's order
    answer = "tests" if has_tests(source, there) else source.answer_column
    missing = {source.problem_column, answer} - there.keys()
    if missing:
        raise UserError(
            f"{name} has no column {', '.join(sorted(missing))} "
            f"(it has {', '.join(there)}): see --problem-column, --answer-column"
        )


def has_tests(source: Source, columns) -> bool:
    """Whether a set without its own reader holds programming problems."""
    return source.read is None and "tests" in columns


def read_problem(name: str, source: Source, cells: dict, index: int) -> dict:
    """The problem in row `index` of a source's table. Raises UserError for an invalid cell.

    A problem may be a chat: a list of {"role": ..., "content": ...}, passed unchanged to the chat
    template. If the answer is a list, its cell may be a list of strings.
    """
    if source.read:
        try:
            return source.read(cells, index)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise UserError(
                f"{name}, row {index + 1}, differs from the other rows ({reason})"
            ) from error
    where = f"{name}, row {index + 1}, column"
    question = cells.get(source.problem_column)
    answer = cells.get(source.answer_column)
    if isinstance(answer, list) and all(isinstance(each, str) for each in answer):
        answer = joined_members(answer, f"{where} {source.answer_column}")
    chat = {}
    if is_chat(question):
        chat = {"chat": question}
        question = "\n".join(message["content"] for message in question)

    problem = {"problem": checked_text(question, f"{where} {source.problem_column}"), **chat}
    if has_tests(source, cells):
        return problem | {"tests": checked_tests(cells["tests"], f"{where} tests")}
    return problem | {"answer": checked_text(answer, f"{where} {source.answer_column}")}


def is_chat(value) -> bool:
    """Whether a cell is a list of messages, each with a role and content, both strings."""
    if not isinstance(value, list) or not value:
        return False
    return all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in value
    )


def without_gaps_and_repeats(found: list[dict]) -> tuple[list[dict], Counter]:
    """The problems that have a text and an answer or tests, and how many were dropped, by reason.

    Of several problems with the same text, the first is kept, regardless of their answers.
    """
    kept = {}
    dropped = Counter()
    for each in found:
        text = each["problem"]
        if not text or not (each.get("answer") or each.get("tests")):
            dropped["empty, or without an answer or tests"] += 1
        elif text not in kept:
            kept[text] = each
        elif each == kept[text]:
            dropped["repeated"] += 1
        else:
            dropped["repeated with a different answer (the first is kept)"] += 1
    return list(kept.values()), dropped


def prepare_sandbox(problems: list[dict], mode: str) -> None:
    """If any problem has tests, start the program sandbox that --code-sandbox selects.

    The first rank prints the sandbox's protections. Raises ProgramsError if any is missing.
    """
    if not any("tests" in each for each in problems):
        return
    walls = start_sandbox(mode)
    if speaks():
        print(walls, flush=True)


def encode_prompts(
    problems: list[dict], tokenizer, limit: int, template: str = ""
) -> tuple[list[dict], list[list[int]]]:
    """(problems, prompts): the problems that are kept, and the token ids of their prompts.

    Problems whose prompts exceed `limit` tokens are dropped, and the first rank prints how many. A
    literal `\\n` in the template, as typed in a shell, is a line break. Raises UserError if no
    problem remains, or the template has no {problem}.
    """
    if template and "{problem}" not in template:
        raise UserError(
            f"--prompt-template {template!r} has no {{problem}}: add it where the problem goes"
        )
    template = template.replace("\\n", "\n")
    if any("chat" in each for each in problems) and not tokenizer.chat_template:
        raise UserError(
            "the data holds chats, but the model's tokenizer has no chat template: use plain text"
        )
    prompts = [encode_prompt(each, tokenizer, template) for each in problems]

    fits = [0 < len(prompt) <= limit for prompt in prompts]
    kept = [each for each, fit in zip(problems, fits, strict=True) if fit]
    kept_prompts = [prompt for prompt, fit in zip(prompts, fits, strict=True) if fit]
    if len(kept) < len(problems) and speaks():
        print(
            f"{len(problems) - len(kept)} of {len(problems)} problems dropped: "
            f"their prompts exceed --max-prompt-tokens {limit}"
        )
    if problems and not kept:
        shortest = min(len(prompt) for prompt in prompts)
        raise UserError(
            f"every prompt exceeds --max-prompt-tokens {limit} "
            f"(the shortest has {shortest} tokens): raise it"
        )
    return kept, kept_prompts


def encode_prompt(each: dict, tokenizer, template: str) -> list[int]:
    """Token ids of a prompt: the chat as is, else `template`, else the chat template, else text."""
    chat = each.get("chat")
    problem = each["problem"]
    if template and not chat:
        return tokenizer(template.replace("{problem}", problem)).input_ids
    if not tokenizer.chat_template:
        return tokenizer(problem).input_ids
    if not chat:
        instruction = CODE_INSTRUCTION if each.get("tests") else INSTRUCTION
        chat = [{"role": "user", "content": f"{problem}\n{instruction}"}]
    encoded = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
    return encoded["input_ids"]


def draw_indices(size: int, position: int, count: int, seed: int) -> list[int]:
    """`count` problem indices, starting at `position` in an endless stream of epochs.

    Each epoch has all `size` problems, in an order fixed by (seed, epoch).
    """
    first_epoch = position // size
    last_epoch = (position + count) // size
    stream = []
    for epoch in range(first_epoch, last_epoch + 1):
        generator = torch.Generator().manual_seed(SEED_STRIDE * seed + epoch)
        stream += torch.randperm(size, generator=generator).tolist()

    start = position - first_epoch * size
    return stream[start : start + count]
