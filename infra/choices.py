"""Without this file GPQA and MMLU-Pro would be problems without their choices.

A problem is {"problem": text with its options, "answer": a letter, "choice": True}. If the record
has a gap, the text or the answer is empty, and the caller drops the problem. A record that cannot
be read raises ValueError.
"""

import random

from infra.data_sets import cell_text

LETTERS = "ABCDEFGHIJ"  # the grader reads no others


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


LAYOUTS = [  # (columns of a known data set, reader)
    (("Question", "Correct Answer", "Incorrect Answer 3"), gpqa_problem),
    (("question", "options", "answer", "answer_index"), mmlu_problem),
    (("question", "choices", "answer", "subject"), mmlu_problem),
]
