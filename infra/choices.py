"""Multiple choice: options with letters, as known data sets hold them, or as a problem shows them.

A problem is {"problem": text with its options, "answer": a letter, "choice": True}. Its text or its
answer is empty for a gap: the caller drops it. What cannot be read raises ValueError.
"""

import json
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
