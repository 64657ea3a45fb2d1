"""Multiple choice: options with letters, as known data sets hold them, or as a problem shows them.

A problem is {"problem": text with its options, "answer": a letter, "choice": True}. Its text or its
answer is empty for a gap: the caller drops it. What cannot be read raises ValueError.
"""

import json
import random
import re
from collections.abc import Callable
from contextlib import suppress

from infra.data_sets import cell_text

LETTERS = "ABCDEFGHIJ"  # the grader reads no others
GOLD = re.compile(r"(?:\\text\{)?\(?([A-J])[).]{0,2}\}?", re.IGNORECASE)  # B, (B), B. or \text{(B)}


def gpqa_problem(record: dict, index: int) -> dict:
    """GPQA: the right and three wrong answers, shuffled with the index as seed."""
    columns = ["Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3))]
    random.Random(index).shuffle(columns)
    options = [record.get(column) for column in columns]
    right = LETTERS[columns.index("Correct Answer")]
    return multiple_choice(record.get("Question"), options, right, by_index=False)


def mmlu_problem(record: dict, index: int) -> dict:
    """MMLU-Pro's options and the letter of the right one, or MMLU's choices and its index."""
    options = record.get("options", record.get("choices"))
    by_index = "choices" in record
    return multiple_choice(record.get("question"), options, record.get("answer"), by_index)


def multiple_choice(question, options, right, by_index: bool) -> dict:
    """A question and its options; `right` is the right one's letter, label, or index from 0."""
    question, right = cell_text(question, "question"), cell_text(right, "answer")
    options = {} if options in (None, "") else by_label(options, right)
    labels, texts = [*options], [*options.values()]
    if by_index and right not in labels and right in map(str, range(len(labels))):
        right = labels[int(right)]
    if options and right and right not in labels:
        raise ValueError(f"column answer, {right} is no letter of its {len(labels)} options")
    if not (question and options.get(right)):
        return {"problem": "", "answer": ""}
    if not all(texts):
        raise ValueError(f"option {texts.index('') + 1} is empty")
    lines = [f"({x}) {text}" for x, text in zip(LETTERS, texts, strict=False)]
    text = "\n".join([question, *lines, "Answer with the letter."])
    return {"problem": text, "answer": LETTERS[labels.index(right)], "choice": True}


def by_label(options, right: str) -> dict[str, str]:
    """{label: text} of a list of texts, such a dictionary, ARC's {"label": [...], "text": [...]}.

    In a CSV it is JSON. Another text is refused, since a comma may belong to an option. Parquet
    gives every dictionary the labels of all, with None where a record has fewer options.
    """
    if isinstance(options, str):
        try:
            options = json.loads(options)
        except ValueError:
            raise ValueError("its options are one text: write a list, in a CSV as JSON") from None
    if not isinstance(options, dict | list):
        raise ValueError(f"its options are of type {type(options).__name__}: write a list")
    if isinstance(options, dict) and options.keys() == {"label", "text"}:
        options = dict(zip(options["label"], options["text"], strict=True))
    elif isinstance(options, dict):
        options = {x: text for x, text in options.items() if text is not None or x == right}
    if not 2 <= len(options) <= len(LETTERS):
        raise ValueError(f"it has {len(options)} options, not 2 to {len(LETTERS)}")
    if isinstance(options, list):
        options = dict(zip(LETTERS, options, strict=False))
    return {label: cell_text(text, "options") for label, text in options.items()}


# ---- options in columns of their own -------------------------------------------------------------


def choice_reader(records: list[dict], columns: list[str], read: Callable) -> Callable:
    """The reader of records with an option in each of `columns`; `read` if these hold no options.

    read: returns a problem without its options. Raises ValueError if the right one is not sure.
    """
    labels = [column[-1].upper() for column in columns]
    golds, options = [], []
    for index, record in enumerate(records):
        with suppress(ValueError):  # raised again where the record is read
            problem = read(record, index)
            if problem["problem"] and problem.get("answer") and not problem.get("choice"):
                golds.append(str(problem["answer"]))
                options.append(option_texts(record, columns))

    found = {}  # reading -> the index of each right option
    for reading in READINGS:
        with suppress(ValueError):
            each = zip(golds, options, strict=True)
            found[reading] = [reading(gold, labels, texts) for gold, texts in each]
        if labelled in found:
            break
    if max(map(len, columns)) == 1 and labelled not in found:
        cells = [str(record.get(column)) for record in records for column in columns]
        if all(re.fullmatch(r"-?[\d.]+|None|", cell) for cell in cells):
            return read  # such as the numbers a and b of a x + b = c
    names = ", ".join(columns)
    if not found:
        raise ValueError(f"not all answers are letters, numbers or texts of the options {names}")
    if len({*map(tuple, found.values())}) > 1:
        raise ValueError(f"the answers may count the options {names} from 0 or 1: write letters")
    right = next(iter(found))

    def read_choice(record: dict, index: int) -> dict:
        problem = read(record, index)
        if problem.get("choice") or not all(problem.values()):
            return problem
        texts = option_texts(record, columns)
        letter = LETTERS[right(str(problem["answer"]), labels, texts)]
        return problem | multiple_choice(problem["problem"], texts, letter, by_index=False)

    return read_choice


def option_texts(record: dict, columns: list[str]) -> list[str]:
    """The options of a record, which may have fewer than others."""
    texts = [cell_text(record.get(column), column) for column in columns]
    while texts and not texts[-1]:
        texts.pop()
    return texts


def labelled(gold: str, labels: list[str], texts: list[str]) -> int:
    """The index of the option with this label. Like the others, raises ValueError for none."""
    match = GOLD.fullmatch(gold)
    return labels[: len(texts)].index(match[1].upper() if match else gold)


def its_text(gold: str, labels: list[str], texts: list[str]) -> int:
    return texts.index(gold)


def from_zero(gold: str, labels: list[str], texts: list[str]) -> int:
    return [str(number) for number in range(len(texts))].index(gold)


def from_one(gold: str, labels: list[str], texts: list[str]) -> int:
    return from_zero(str(int(gold) - 1), labels, texts)


READINGS = (labelled, its_text, from_zero, from_one)  # of a gold


def shown_letter(gold: str, text: str) -> str:
    """The letter A-J that a gold stands for, if the text shows the options up to it; else empty.

    They are shown as (A) 3, A) 3, A. 3 or A: 3.
    """
    match = GOLD.fullmatch(gold)
    if not match:
        return ""
    letter = match[1].upper()
    up_to = LETTERS[: max(2, LETTERS.index(letter) + 1)]
    shown = [re.search(rf"(?i)\({x}\)|(?:^|[\s*{{]){x}[.):]", text) for x in up_to]
    return letter if all(shown) else ""
