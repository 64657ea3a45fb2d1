"""Without this file a problem would be a text and an answer, whatever its columns are called.

Problems come from the toy, a local file or the hub. A problem is {"problem": text, "answer": text}.
A chat also has "chat", its messages. Multiple choice has "choice": True, and a letter as its
answer. Programming has "tests" and no answer. For a user's own reward, a problem also has "record",
the whole record of the data set.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial

from answers.extraction import boxed_answer, boxes
from infra.data_sets import MEDIA, OPTIONS, SOURCES, Source, cell_text, read_table
from infra.dropped import PICTURE, print_leaks, usable
from infra.errors import UserError, first_line, one_line
from infra.flags import function_of
from infra.ranks import is_first_rank, on_first_rank
from toy.by_name import SETS, problem_set

DAY = date(2024, 7, 26)  # "today" in every chat template, so that a run's prompts never change
DATED = re.compile(r"strftime_now\((['\"])(.*?)\1\)")  # a chat template's call for today's date
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
# B, (B), B. or \text{(B)}
LETTER = re.compile(r"(?:\\text\{)?\(?([A-J])[).]{0,2}\}?", re.IGNORECASE)


def load_problems(
    name: str,
    problem_column: str = "problem",
    answer_column: str = "answer",
    seed: int = 0,
    flag: str = "--data",
    whole: bool = False,
) -> list[dict]:
    """The problems of `name`: the toy, a name in SOURCES, a local file or a hub id.

    Records that a run cannot learn from are dropped and counted (infra/dropped.py). The first rank
    also prints which columns are not used. whole: keep the record for a user's own reward; then no
    answer is needed. Raises UserError, which names `flag`, for an unreadable set, a missing column,
    an invalid cell, a chat that does not end with the user's message, or no remaining problem.
    """
    if name in SETS:
        return problem_set(name, seed)

    own = Source(name, problem_column, answer_column)  # for a local file, only the columns matter
    source = replace(SOURCES.get(name, own), whole=whole)
    records, columns = read_table(name, source, flag)
    where = f"{flag} {name}"
    read, used = reader_of(columns, source, where)
    unused = [column for column in columns if column not in used]
    if unused and name not in SOURCES and is_first_rank():
        print(f"{name}: {', '.join(used)} are used; the model does not see {', '.join(unused)}")

    pictures = list(filter(MEDIA.fullmatch, columns))
    problems = []
    for index, record in enumerate(records):
        try:
            problem = read(record, index)
        except ValueError as error:
            raise UserError(f"{where}, record {index + 1}, {first_line(error)}") from error
        if whole:
            problem["record"] = record
        if any(record.get(column) for column in pictures):
            problem["picture"] = True
        problems.append(problem)
    problems = usable(problems, where, whole)
    hidden = [] if whole else list(filter(OPTIONS.fullmatch, unused))
    if hidden and not all(problem.get("choice") for problem in problems):
        raise UserError(
            f"{where}: the model would not see the options in {', '.join(hidden)}: write them into "
            "the problems, as (A) ... and (B) ..., and drop the columns"
        )
    return problems


def load_sets(
    data: str,
    eval_data: str = "",
    seed: int = 0,
    columns: tuple[str, str] = ("problem", "answer"),
    reward: str = "",
    eval_limit: int = 0,
) -> tuple[list[dict], list[dict]]:
    """(training problems, held-out problems), from the flags of these names. Raises UserError.

    columns: --problem-column and --answer-column. eval_limit: the most held-out problems; 0: all.
    """
    problems = load_problems(data, *columns, seed, whole=bool(reward))
    held_out = []
    if eval_data:
        held_out = load_problems(eval_data, *columns, seed, "--eval-data", bool(reward))
        held_out = held_out[: eval_limit or None]
    prepare_grading([*problems, *held_out], reward)
    if is_first_rank():
        print_leaks(held_out, problems, f"--eval-data {eval_data}")
    return problems, held_out


def prepare_grading(problems: list[dict], reward: str = "") -> None:
    """Load --reward, whose function grades; else start the sandbox if a problem is a program.

    All ranks call this. Raises UserError.
    """
    if reward:
        function_of("reward", reward)
    elif any("tests" in problem for problem in problems):
        on_first_rank(print_sandbox)


def print_sandbox() -> None:
    """Start the program sandbox, and print a line about it. Raises UserError."""
    from programs import ProgramsError
    from programs.sandbox.client import start_sandbox

    try:
        print(start_sandbox(), flush=True)
    except ProgramsError as error:
        raise UserError(error) from error


# ---- records -------------------------------------------------------------------------------------


def reader_of(
    columns: list[str], source: Source, where: str
) -> tuple[Callable[[dict, int], dict], list[str]]:
    """(the function of a record and its index that returns a problem, the columns it uses).

    The function reads the source's columns, else a known layout, else `question` as the problem, as
    in GSM8K. Raises UserError if the records have none of these.
    """
    answer = "tests" if "tests" in columns else source.answer_column
    needed = [source.problem_column] if source.whole else [source.problem_column, answer]
    missing = [name for name in needed if name not in columns]
    for layout, read in known_layouts() if missing else []:
        if {*columns} >= {*layout}:
            return read, [*layout]
    if missing == ["problem"] and "question" in columns:
        source, missing = replace(source, problem_column="question"), []
    if missing:
        raise UserError(
            f"{where} has no column {missing[0]}, only {', '.join(columns)}: see --problem-column "
            "and --answer-column"
        )
    return partial(read_record, source), [source.problem_column, answer]


def read_record(source: Source, record: dict, index: int) -> dict:
    """The problem in a record; its text or its answer is empty for a gap. Raises ValueError."""
    cell = record.get(source.problem_column)
    chat = {}
    if isinstance(cell, list) and PICTURE.search(str(cell)):
        cell = str(cell)  # a chat whose messages have parts; it is dropped
    if cell and isinstance(cell, list) and all(map(is_message, cell)):
        chat = {"chat": cell}
        if cell[-1]["role"] != "user":  # an assistant's turn may hold the solution
            raise ValueError(
                f"ends with a message of the {cell[-1]['role']}: end it with the user's"
            )
        cell = "\n".join(message["content"] for message in cell)
    problem = {"problem": cell_text(cell, source.problem_column), **chat}

    tests = record.get("tests")
    if tests is None:
        answer = record.get(source.answer_column)
        if source.whole and not isinstance(answer, str):
            return problem | {"answer": answer}  # unchanged: the user's own reward reads it
        answer = short_answer(cell_text(answer, source.answer_column))
        letter = shown_letter(answer, problem["problem"])
        return problem | ({"answer": letter, "choice": True} if letter else {"answer": answer})
    from programs.problems import checked_tests

    return problem | {"tests": checked_tests(tests, "column tests")}


def is_message(cell) -> bool:
    """Whether a cell is {"role": "user", "content": text} or similar."""
    return isinstance(cell, dict) and "role" in cell and isinstance(cell.get("content"), str)


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
        from programs.problems import eurus_problem

        return eurus_problem(record, index)
    source = Source("", "prompt", "reward_model.ground_truth")
    gold = (record.get("reward_model") or {}).get("ground_truth")
    return read_record(source, record | {source.answer_column: gold}, index)


def shown_letter(gold: str, text: str) -> str:
    """The letter A-J that a gold answer stands for, if the text shows options up to it; else "".

    They are shown as (A) 3, A) 3, A. 3 or A: 3.
    """
    match = LETTER.fullmatch(gold)
    if not match:
        return ""
    letter = match[1].upper()
    up_to = "ABCDEFGHIJ"[: max(2, ord(letter) - ord("A") + 1)]
    shown = [re.search(rf"(?i)\({x}\)|(?:^|[\s*{{]){x}[.):]", text) for x in up_to]
    return letter if all(shown) else ""


def known_layouts() -> list[tuple[tuple, Callable]]:
    """(columns of a known data set, reader), in the order in which they are tried."""
    from infra import choices
    from programs import problems as programs

    return [(("prompt", "reward_model"), verl_problem), *choices.LAYOUTS, *programs.LAYOUTS]


# ---- prompts -------------------------------------------------------------------------------------


PROMPT_FLAGS = ("prompt_template", "system", "template_args")


def prompt_flags(cfg) -> dict[str, str]:
    """The values of PROMPT_FLAGS in a config.Config or an evaluate.Settings."""
    return {name: getattr(cfg, name) for name in PROMPT_FLAGS}


def encode_prompts(
    problems: list[dict],
    tokenizer,
    limit: int,
    template: str = "",
    system: str = "",
    template_args: str = "",
) -> tuple[list[dict], list[list[int]]]:
    """(problems, prompts): the problems that are kept, and the token ids of their prompts.

    Problems whose prompts exceed `limit` tokens are dropped, and the first rank prints how many. A
    literal `\\n` in the template, as typed in a shell, is a line break. system: a system message
    for chats without one. template_args: a JSON dictionary for the chat template. Raises UserError
    if no problem remains, or a template does not fit.
    """
    if (system or template_args) and (template or not tokenizer.chat_template):
        raise UserError("--system and --template-args need a chat template, no --prompt-template")
    with one_line(tokenizer.name_or_path, f"--template-args {template_args} is no JSON dictionary"):
        options = dict(json.loads(template_args or "{}"))
    for option in options:
        if option not in tokenizer.get_chat_template():
            raise UserError(f"--template-args: the chat template does not read {option}")
    if template and "{problem}" not in template:
        raise UserError(f"--prompt-template {template!r} has no {{problem}}")
    if template and any("chat" in problem for problem in problems):
        raise UserError("--prompt-template does nothing with problems that are chats: drop it")
    template = template.replace("\\n", "\n")
    with one_line(tokenizer.name_or_path, "its tokenizer cannot read a prompt"):
        prompts = [encode_prompt(each, tokenizer, template, system, options) for each in problems]
    fits = [i for i, prompt in enumerate(prompts) if len(prompt) <= limit]
    dropped = len(problems) - len(fits)
    if dropped and not fits:
        raise UserError(f"every prompt exceeds --max-prompt-tokens {limit}: raise it")
    if dropped and is_first_rank():
        print(f"{dropped} of {len(problems)} prompts dropped: above --max-prompt-tokens {limit}")
    return [problems[i] for i in fits], [prompts[i] for i in fits]


def encode_prompt(problem: dict, tokenizer, template: str, system: str, options: dict) -> list[int]:
    """Token ids: the problem in `template`, or its chat, or the problem and an instruction.

    The last two go through the chat template, if the model has one. Raises UserError if the
    template fails, or leaves the problem out. An instruction that the tokenizer cannot spell, such
    as the toy's, is left out.
    """
    text, chat = problem["problem"], problem.get("chat")
    if template:
        return encode_text(template.replace("{problem}", text), tokenizer)
    instruction = INSTRUCTION
    if problem.get("tests"):
        from programs.problems import CODE_INSTRUCTION as instruction
    instructed = f"{text}\n{instruction}"
    if not chat and not tokenizer.chat_template:
        spelled = tokenizer(instruction, add_special_tokens=False).input_ids
        return encode_text(text if tokenizer.unk_token_id in spelled else instructed, tokenizer)

    remedy = "write the problems as texts" if chat else "pass --prompt-template"
    chat = chat or [{"role": "user", "content": instructed}]
    if system and chat[0]["role"] != "system":
        chat = [{"role": "system", "content": system}, *chat]
    with one_line(tokenizer.name_or_path, f"its chat template fails: {remedy}"):
        dated = DATED.sub(lambda call: repr(DAY.strftime(call[2])), tokenizer.get_chat_template())
        form = options | {"chat_template": dated, "add_generation_prompt": True, "tokenize": False}
        text = tokenizer.apply_chat_template(chat, **form)
        if chat[-1]["content"].strip() not in text:
            raise ValueError("it leaves the problem out: it may expect a list of parts")
    return tokenizer(text, add_special_tokens=False).input_ids


def encode_text(text: str, tokenizer) -> list[int]:
    """Token ids of a prompt, with one BOS at most, and without the EOS that tokenizers may add."""
    ids = tokenizer(text).input_ids
    if ids[:2] == 2 * [tokenizer.bos_token_id]:  # the tokenizer's, and the template's own
        del ids[0]
    if ids[-1:] == [tokenizer.eos_token_id]:
        del ids[-1]
    return ids


def refuse_length(config, prompts: list[list[int]], max_new_tokens: int) -> None:
    """Raise UserError if the model has too few positions for a response, or no such token."""
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
        raise UserError(
            f"a prompt has token {largest}, but the model has {size} tokens: put the model's own "
            "tokenizer in its folder"
        )
