"""Loads problems from the toy, a local file or the hub, and encodes their prompts.

A problem is {"problem": text, "answer": text}. A chat also has "chat", its messages. Multiple
choice has "choice": True, and a letter as its answer. Programming has "tests" and no answer.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial

from answers.extraction import boxed_answer, boxes
from infra.choices import gpqa_problem, mmlu_problem, shown_letter
from infra.errors import UserError, first_line, one_line
from infra.grading import refuse_unmatchable
from infra.ranks import is_first_rank, on_first_rank
from infra.tables import OPTIONS, SOURCES, Source, cell_text, read_table
from programs import ProgramsError
from programs.problems import CODE_INSTRUCTION, LAYOUTS, checked_tests, eurus_problem
from programs.sandbox.client import start_sandbox
from toy.by_name import SETS, problem_set

DAY = date(2024, 7, 26)  # today, for every chat template: a run goes on tomorrow as today
DATED = re.compile(r"strftime_now\((['\"])(.*?)\1\)")
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


def load_problems(
    name: str,
    problem_column: str = "problem",
    answer_column: str = "answer",
    seed: int = 0,
    flag: str = "--data",
) -> list[dict]:
    """The problems of `name`: the toy, a name in SOURCES, a local file or a hub id.

    Records without a text or an answer are dropped, as are repeated problems, of which the first
    counts; the first rank prints how many, and whether repeats have other answers. Raises
    UserError, which names `flag`, for an unreadable set, a missing column, an invalid cell, a chat
    that does not end with the user's message, or no remaining problem.
    """
    if name in SETS:
        return problem_set(name, seed)

    own = Source(name, problem_column, answer_column)  # of a local file, only the columns matter
    source = SOURCES.get(name, own)
    records = read_table(name, source, flag)
    read = reader_of(records, source, f"{flag} {name}")

    problems = {}  # by text; of several with the same text, the first that has an answer
    disputed = []  # texts of repeats with another answer
    for index, record in enumerate(records):
        try:
            problem = read(record, index)
        except ValueError as error:
            raise UserError(f"{flag} {name}, record {index + 1}, {first_line(error)}") from error
        if all(problem.values()) and problems.setdefault(problem["problem"], problem) != problem:
            disputed.append(problem["problem"])
    if len(problems) < len(records) and is_first_rank():
        dropped = f"{len(records) - len(problems)} of {len(records)} records dropped"
        print(f"{name}: {dropped}: repeated, or without a text or an answer")
    if disputed and is_first_rank():
        other = "repeat a problem with another answer, which is not used; the first"
        print(f"{name}: {len(disputed)} records {other}: {disputed[0][:80]!r}")
    if not problems:
        raise UserError(f"{flag} {name} holds no problem with an answer: see --answer-column")
    return list(problems.values())


def load_sets(cfg) -> tuple[list[dict], list[dict]]:
    """(training problems, held-out problems) of a config.Config. Raises UserError."""
    columns = (cfg.problem_column, cfg.answer_column, cfg.seed)
    problems = load_problems(cfg.data, *columns)
    held_out = load_problems(cfg.eval_data, *columns, "--eval-data") if cfg.eval_data else []
    held_out = held_out[: cfg.eval_limit or None]
    refuse_unmatchable(problems, f"--data {cfg.data}")  # golds; prints how many
    refuse_unmatchable(held_out, f"--eval-data {cfg.eval_data}")
    on_first_rank(prepare_sandbox, problems + held_out)
    seen = {problem["problem"] for problem in problems}
    shared = sum(problem["problem"] in seen for problem in held_out)
    if shared and is_first_rank():
        print(f"{shared} of {len(held_out)} problems of --eval-data {cfg.eval_data} are in --data")
    return problems, held_out


def prepare_sandbox(problems: list[dict]) -> None:
    """If any problem has tests, start the program sandbox, and print so. Raises UserError."""
    if any("tests" in problem for problem in problems):
        try:
            print(start_sandbox(), flush=True)
        except ProgramsError as error:
            raise UserError(error) from error


# ---- records -------------------------------------------------------------------------------------


def reader_of(records: list[dict], source: Source, where: str) -> Callable[[dict, int], dict]:
    """The function of a record and its index that returns a problem.

    It reads the source's columns, else a known layout, else `question` as the problem, as in GSM8K.
    Raises UserError if the records have none of these, or options in a column that is not read.
    """
    columns = dict.fromkeys(column for record in records for column in record)  # in order
    answer = "tests" if "tests" in columns else source.answer_column
    missing = [name for name in (source.problem_column, answer) if name not in columns]
    for layout, read in (*KNOWN, *LAYOUTS):
        if missing and columns.keys() >= set(layout):
            return read
    if missing == ["problem"] and "question" in columns:
        source, missing = replace(source, problem_column="question"), []
    if missing:
        raise UserError(
            f"{where} has no column {missing[0]}, only {', '.join(columns)}: see --problem-column, "
            "--answer-column"
        )
    for column in columns.keys() & OPTIONS:
        raise UserError(
            f"{where}: the model would not see the options in column {column}: write them into "
            "the problems, and drop the column"
        )
    return partial(read_record, source)


def read_record(source: Source, record: dict, index: int) -> dict:
    """The problem in a record; its text or its answer is empty for a gap. Raises ValueError."""
    cell = record.get(source.problem_column)
    chat = {}
    if cell and isinstance(cell, list) and all(isinstance(each, dict) for each in cell):
        if not all(isinstance(each.get("content"), str) and "role" in each for each in cell):
            form = '{"role": "user", "content": TEXT}'
            raise ValueError(f"column {source.problem_column}, a message is not like {form}")
        chat = {"chat": cell}
        if cell[-1]["role"] != "user":  # an assistant's turn may hold the solution
            raise ValueError(
                f"ends with a message of the {cell[-1]['role']}: end it with the user's"
            )
        cell = "\n".join(message["content"] for message in cell)
    problem = {"problem": cell_text(cell, source.problem_column), **chat}

    tests = record.get("tests")
    if tests is None:
        answer = short_answer(cell_text(record.get(source.answer_column), source.answer_column))
        letter = shown_letter(answer, problem["problem"])
        return problem | ({"answer": letter, "choice": True} if letter else {"answer": answer})
    return problem | {"tests": checked_tests(tests, "column tests")}


def short_answer(gold: str) -> str:
    r"""x for a gold that ends in a line "#### x" (GSM8K) or has a \boxed{x} (MATH's solutions)."""
    _, _, last = gold.rpartition("####")
    if "####" in gold and last.strip() and "\n" not in last.strip():
        return last.strip()
    boxed = boxes(gold)
    if not boxed:
        return gold
    return boxed_answer(gold, boxed) or boxed[-1][2]


def verl_problem(record: dict, index: int) -> dict:
    """The layout of verl's data sets: programs in Eurus-2-RL-Data, answers in DAPO-Math-17k."""
    if record.get("ability") == "code":
        return eurus_problem(record, index)
    source = Source("", "prompt", "reward_model.ground_truth")
    truth = record.get("reward_model") or {}
    if not isinstance(truth, dict):
        raise ValueError("column reward_model, is not an object: pass the original file")
    gold = truth.get("ground_truth")
    return read_record(source, record | {source.answer_column: gold}, index)


KNOWN = [  # (columns of a known set, reader), before those of programs.problems.LAYOUTS
    (("prompt", "reward_model"), verl_problem),
    (("Question", "Correct Answer", "Incorrect Answer 3"), gpqa_problem),
    (("question", "options", "answer", "answer_index"), mmlu_problem),
    (("question", "choices", "answer", "subject"), mmlu_problem),
]


# ---- prompts -------------------------------------------------------------------------------------


def encode_prompts(
    problems: list[dict], tokenizer, limit: int, template: str = ""
) -> tuple[list[dict], list[list[int]]]:
    """(problems, prompts): the problems that are kept, and the token ids of their prompts.

    Problems whose prompts exceed `limit` tokens are dropped, and the first rank prints how many. A
    literal `\\n` in the template, as typed in a shell, is a line break. Raises UserError if no
    problem remains, or a template does not fit.
    """
    if template and "{problem}" not in template:
        raise UserError(f"--prompt-template {template!r} has no {{problem}}")
    if template and any("chat" in problem for problem in problems):
        raise UserError("--prompt-template does nothing with problems that are chats: drop it")
    template = template.replace("\\n", "\n")
    prompts = [encode_prompt(problem, tokenizer, template) for problem in problems]
    fits = [i for i, prompt in enumerate(prompts) if len(prompt) <= limit]
    dropped = len(problems) - len(fits)
    if dropped and not fits:
        raise UserError(f"every prompt exceeds --max-prompt-tokens {limit}: raise it")
    if dropped and is_first_rank():
        print(f"{dropped} of {len(problems)} prompts dropped: above --max-prompt-tokens {limit}")
    return [problems[i] for i in fits], [prompts[i] for i in fits]


def encode_prompt(problem: dict, tokenizer, template: str) -> list[int]:
    """Token ids: the problem in `template`, or its chat, or the problem and an instruction.

    The last two pass the chat template, if the model has one; UserError if it fails, or leaves the
    problem out. An instruction that the tokenizer cannot spell, such as the toy's, is left out.
    """
    text, chat = problem["problem"], problem.get("chat")
    if template:
        return encode_text(template.replace("{problem}", text), tokenizer)
    instruction = CODE_INSTRUCTION if problem.get("tests") else INSTRUCTION
    instructed = f"{text}\n{instruction}"
    if not chat and not tokenizer.chat_template:
        spelled = tokenizer(instruction, add_special_tokens=False).input_ids
        return encode_text(text if tokenizer.unk_token_id in spelled else instructed, tokenizer)

    remedy = "write the problems as texts" if chat else "pass --prompt-template"
    chat = chat or [{"role": "user", "content": instructed}]
    with one_line(tokenizer.name_or_path, f"its chat template fails: {remedy}"):
        dated = DATED.sub(fixed_day, tokenizer.get_chat_template())
        form = {"chat_template": dated, "add_generation_prompt": True, "tokenize": False}
        text = tokenizer.apply_chat_template(chat, **form)
        if chat[-1]["content"].strip() not in text:
            raise ValueError("the problem is missing: it may expect a list of parts")
    return tokenizer(text, add_special_tokens=False).input_ids


def fixed_day(call: re.Match) -> str:
    """DAY in the format of a template's strftime_now(FORMAT)."""
    return repr(DAY.strftime(call[2]))


def encode_text(text: str, tokenizer) -> list[int]:
    """Token ids of a prompt, with one BOS at most, and without the EOS that tokenizers may add."""
    ids = tokenizer(text).input_ids
    if ids[:2] == 2 * [tokenizer.bos_token_id]:  # the tokenizer's, and the template's own
        del ids[0]
    if ids[-1:] == [tokenizer.eos_token_id]:
        del ids[-1]
    return ids


def refuse_length(config, prompts: list[list[int]], max_new_tokens: int) -> None:
    """Raise UserError if the model lacks positions for a response, or a prompt's token."""
    limit = getattr(config, "max_position_embeddings", None)
    scheme = getattr(config, "rope_parameters", None) or {}
    if scheme.get("rope_type") == "longrope":
        # Beyond this limit, the longest sequence in a batch sets the frequencies for all.
        limit = min(limit, scheme["original_max_position_embeddings"])
    longest = max((len(prompt) for prompt in prompts), default=0)
    if limit and longest + max_new_tokens > limit:
        raise UserError(
            f"--max-new-tokens {max_new_tokens} after a prompt of {longest} tokens exceeds the "
            f"{limit} tokens that this {config.model_type} supports: lower it, or with a scheme "
            "such as yarn raise max_position_embeddings in config.json"
        )
    largest = max((token for prompt in prompts for token in prompt), default=0)
    size = config.vocab_size
    if largest >= size:
        raise UserError(f"token {largest} in a prompt: the model knows {size}, its tokenizer more")
