"""Tests answers/extraction.py, which finds an answer, and thoughts.py, which ends a thought."""

import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from tables import boxed, rows

from answers.extraction import MAX_BOXES, boxes, extract_answer
from answers.thoughts import open_thought, without_thoughts

FOLDER = ROOT / "answers"


@pytest.mark.parametrize("row", rows("extracted"), ids=lambda row: row["response"][:60])
def test_extract_answer(row):
    assert extract_answer(row["response"], row.get("truncated", False)) == row["answer"]


def test_boxes_returns_the_last_boxes_in_order():
    found = boxes("".join(boxed(i) for i in range(100)))
    assert [content for _, _, content in found] == [str(i) for i in range(100 - MAX_BOXES, 100)]
    assert all(a[1] == b[0] for a, b in zip(found, found[1:], strict=False))


JOINED = [
    (r"\boxed{1} and \boxed{2}", "1, 2"),
    (r"$\boxed{1}$, $\boxed{2}$ or $\boxed{3}$", "1, 2, 3"),
    (r"$x = \boxed{1}$, $y = \boxed{2}$", "x = 1, y = 2"),
    (r"$x = \boxed{1}$ or $x = \boxed{2}$", "1, 2"),
    (r"$x = \boxed{2}$, $x = \boxed{2}$", "2"),
    (r"$x = \boxed{}$, $y = \boxed{2}$", "2"),
    (r"$\boxed{1}$, $y = \boxed{2}$", "1, 2"),
    ("(a) \\boxed{1}\n(b) \\boxed{2}", "1, 2"),
    (r"Area: \boxed{1}. Perimeter: \boxed{2}.", "1, 2"),
    (r"\boxed{1}, that is \boxed{2}", "2"),
    (r"\boxed{1}. The answer: \boxed{2}", "2"),
    (r"\boxed{1}\% and \boxed{2}^\circ", r"1\%, 2^\circ"),
    (r"\boxed{1} and \boxed{1}", "1"),
    (r"\boxed 42", "42"),
    ("boxed{42}", "42"),
    (r"\boxed(42)", "(42)"),
    (r"\boxed{1} \boxed{\text{2}", None),
]


@pytest.mark.parametrize("response, answer", JOINED)
def test_boxes_are_one_answer_where_only_joiners_or_labels_part_them(response, answer):
    assert extract_answer(response) == answer


def test_the_folder_works_inside_another_package(tmp_path):
    """The reward function of docs/answers.md runs with a copy of the folder."""
    shutil.copytree(FOLDER, tmp_path / "mypackage" / "answers")
    function = (ROOT / "docs/answers.md").read_text().split("```python\n")[1].split("```")[0]
    call = 'print(right(["\\\\boxed{7}</s>", [{"role": "", "content": "It is 8."}]], [7, "7"]))'
    python = [sys.executable, "-c", function + call]
    printed = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert printed.stdout == "[1.0, 0.0]\n"


PAIRS = [
    ("<think>", "</think>"),
    ("<Thinking>", "</Thinking>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis", "<|channel|>final"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
]


@pytest.mark.parametrize("opens, closes", PAIRS)
def test_what_stands_between_tags_is_not_read(opens, closes):
    assert without_thoughts(f"a{opens}b{closes}c{opens}d{closes}e") == "e"
    assert without_thoughts(f"b{closes}c") == "c"  # the prompt opened the thought
    assert without_thoughts(f"{opens}b{closes}c{opens}d") == ""
    assert open_thought(f"Why?{opens}\n") == opens
    assert open_thought(f"{opens}\n{closes}\n") == ""
    assert open_thought(f"What is {opens}x?") == ""


@pytest.mark.parametrize("text", ["[think] [reasoning]", "a < think > b", "<thinker>", ""])
def test_other_words_are_no_tags(text):
    assert without_thoughts(text) == text
