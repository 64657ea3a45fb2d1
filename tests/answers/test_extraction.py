"""answers/extraction.py: where an answer is found in a response."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from answers.extraction import MAX_BOXES, boxes, extract_answer

FOLDER = Path(__file__).parents[2] / "answers"


@pytest.mark.parametrize(
    "response, answer",
    [
        ("so \\boxed{1} no, this \\boxed{42}.", "42"),
        ("\\boxed{3} and \\boxed{4", None),
        ("\\fbox{7}", "7"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed{}", ""),
        # neighbours
        ("$\\boxed{1}$ and $\\boxed{2}$", "1, 2"),
        (", ".join(f"\\boxed{{{i}}}" for i in range(8)), "0, 1, 2, 3, 4, 5, 6, 7"),
        ("\\boxed{1} \\quad\\text{or}\\quad \\boxed{2}", "1, 2"),
        ("$\\boxed{42}$ or $\\boxed{42}$", "42"),
        ("\n1. $\\boxed{3}$\n2. $\\boxed{4}$", "3, 4"),
        ("\\boxed{1}. But that is wrong, rather \\boxed{2}", "2"),
        # thoughts
        ("\\boxed{1}</think> The answer is $2$.", "2"),
        ("<think>\\boxed{1}", None),
        ("<|begin_of_thought|>\\boxed{1}", None),
        ("<reasoning>\\boxed{1}", None),
        # stated
        ("the answer is 7. Done.", "7"),
        ("<answer>80</answer> or <answer> 82 </answer>", "82"),
        ("The answer is 5. So the answer is 6.", "6"),
        ("The answer is 5. However, the sum is 6.", None),
        ("The answer is 12 because 13 is prime.", "12"),
        ("#### 12", "12"),
        ("So he is 12.\n\n####12", "12"),
        ("There were 5 and 7 more.\nanswer>12</answer>", "12"),
        ("Final answer: x = 3\nThat is all.", "3"),
        ("<answer>She has 10 apples.</answer>", "10 \\text{apples}"),
        ("\\boxed{1} <answer>2</answer>", "2"),
        ("\\boxed{7}</answer></s><|im_end|>", "7"),
        ("The answer is 72 clips.<|im_end|>", "72 \\text{clips}"),
        ("The answer is (2, 3)", "(2, 3)"),
        ("Answer: π/4", "π/4"),
        ("Answer: Yes", "Yes"),
        ("Answer = 5", "5"),
        ("The answer is \\frac{1}{2}.", "\\frac{1}{2}"),
        ("The answer is 2x + 1.", "2x + 1"),
        ("The area is 12 cm^2.", "12 \\text{cm^2}"),
        ("#### 20 + 40 = 60 bags", "60 \\text{bags}"),
        # at the end
        ("in all 1,234 ways", "1,234 \\text{ways}"),
        ("so we get 1,234 ways", "1,234 \\text{ways}"),
        ("1,000 + 20 = 1,020 bags", "1,020 \\text{bags}"),
        ("so they have $14 + $7 = $21", "$21"),
        ("3 rides * 6 tickets per ride = 18 tickets", "18 \\text{tickets}"),
        ("Together they eat \\(5 + 15 = 20\\) cookies.", "20 \\text{cookies}"),
        ("So she has to learn $48 + 54 = 102$ lines.", "102 \\text{lines}"),
        ("So they eat 13x7= 91", None),
        ("So there are 13x7= 91", "91"),
        ("The cost of 6 erasers and 8 pencils is $36.", "$36"),
        ("Since Naomi caught 17 fish, Darren caught 17 - 6 = 11 fish.", "11 \\text{fish}"),
        ("The difference between their scores is 7.", "7"),
        # other results in the sentence
        ("One root is 5 and the other is 7.", None),
        ("So it is 5 or 2x is 7", None),
        ("So 2x is 7", None),
        ("There are 2 dogs and 7 cats.", None),
        ("She owes 2 friends $5.", None),
        ("no idea", None),
        ("", None),
    ],
)
def test_extract_answer(response, answer):
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    "response, answer",
    [
        ("so $x=5$", None),
        ("The answer is 5", None),  # perhaps the beginning of 57
        ("The answer is $5$", "5"),
        ("The answer is 5.\nLet me ver", "5"),
        ("\\boxed{5} and", "5"),
    ],
)
def test_extract_answer_needs_a_statement_in_a_truncated_response(response, answer):
    assert extract_answer(response, truncated=True) == answer


def test_boxes_returns_the_last_boxes_in_order():
    found = boxes("".join(f"\\boxed{{{i}}}" for i in range(100)))
    assert [content for _, _, content in found] == [str(i) for i in range(100 - MAX_BOXES, 100)]
    assert all(a[1] == b[0] for a, b in zip(found, found[1:], strict=False))


def test_the_folder_works_inside_another_package(tmp_path):
    """The reward function of answers/README.md, with a copy of the folder."""
    shutil.copytree(FOLDER, tmp_path / "mypackage" / "answers")
    function = (FOLDER / "README.md").read_text().split("```python\n")[1].split("```")[0]
    call = 'print(right(["\\\\boxed{7}</s>", [{"role": "", "content": "It is 8."}]], [7, "7"]))'
    python = [sys.executable, "-c", function + call]
    printed = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert printed.stdout == "[1.0, 0.0]\n"
