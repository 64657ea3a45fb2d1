"""Multiple choice: options with letters, as known data sets hold them, or as a problem shows them.

A problem is {"problem": text with its options, "answer": a letter, "choice": True}. Its text or its
answer is empty for a gap: the caller drops it. What cannot be read raises ValueError.
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
    return multiple_choice(record.get("Question"), options, right)


def mmlu_problem(record: dict, index: int) -> dict:
    """MMLU-Pro's options and the letter of the right one, or MMLU's choices and its index."""
    options, right = record.get("options", record.get("choices")), record.get("answer")
    if isinstance(right, int):
        right = LETTERS[right]
    return multiple_choice(record.get("question"), options, right)


def multiple_choice(question, options: list | None, right: str | None) -> dict:
    """A question with its options; `right` is the letter of the right one."""
    question = cell_text(question, "question")
    texts = [cell_text(option, "options") for option in options or []]
    if not (question and right and texts and all(texts)):
        return {"problem": "", "answer": ""}
    letters = [*LETTERS[: len(texts)]]
    if right not in letters:
        raise ValueError(f"column answer, {right} is no letter of its {len(texts)} options")
    lines = [f"({x}) {text}" for x, text in zip(letters, texts, strict=True)]
    text = "\n".join([question, *lines, "Answer with the letter."])
    return {"problem": text, "answer": right, "choice": True}


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
