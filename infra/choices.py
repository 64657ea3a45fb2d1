"""Multiple choice: options with letters, as known data sets hold them, or as a problem shows them.

A problem is {"problem": text with its options, "answer": a letter, "choice": True}. If the record
has a gap, the text or the answer is empty, and the caller drops the problem. A record that cannot
be read raises ValueError.
"""

import random
import re

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
    """A question and a list of options; `right` is the letter of the right one, or its index."""
    question, right = cell_text(question, "question"), cell_text(right, "answer")
    if not (question and options and right):
        return {"problem": "", "answer": ""}
    if not isinstance(options, list) or not 2 <= len(options) <= len(LETTERS):
        raise ValueError(f"its options are not a list of 2 to {len(LETTERS)} texts")
    letters = [*LETTERS[: len(options)]]
    if by_index and right in map(str, range(len(options))):
        right = letters[int(right)]
    if right not in letters:
        raise ValueError(f"column answer, {right} is not a letter of its {len(options)} options")
    texts = [cell_text(option, "options") for option in options]
    if not all(texts):
        return {"problem": "", "answer": ""}
    lines = [f"({x}) {text}" for x, text in zip(letters, texts, strict=True)]
    text = "\n".join([question, *lines, "Answer with the letter."])
    return {"problem": text, "answer": right, "choice": True}


def shown_letter(gold: str, text: str) -> str:
    """The letter A-J that a gold answer stands for, if the text shows options up to it; else "".

    They are shown as (A) 3, A) 3, A. 3 or A: 3.
    """
    match = GOLD.fullmatch(gold)
    if not match:
        return ""
    letter = match[1].upper()
    up_to = LETTERS[: max(2, LETTERS.index(letter) + 1)]
    shown = [re.search(rf"(?i)\({x}\)|(?:^|[\s*{{]){x}[.):]", text) for x in up_to]
    return letter if all(shown) else ""
