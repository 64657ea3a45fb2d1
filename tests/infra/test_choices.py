"""infra/choices.py: the options of a problem, and its letter."""

import pytest

from infra.choices import shown_letter
from infra.errors import UserError
from infra.folder import write_lines
from infra.grading import grade_all
from infra.problems import load_problems

SHOWN = "q\n(A) u\n(B) v\nAnswer with the letter."


def record(options, answer="B", **more):
    """A record of MMLU-Pro."""
    return {"question": "q", "options": options, "answer": answer, "answer_index": 1} | more


def mmlu(choices, answer):
    return {"question": "q", "choices": choices, "answer": answer, "subject": "s"}


@pytest.fixture
def loaded(tmp_path):
    """loaded(records) -> their problems."""

    def of(records):
        write_lines(tmp_path / "a.jsonl", records)
        return load_problems(str(tmp_path / "a.jsonl"))

    return of


@pytest.mark.parametrize("given", [record(["u", "v"]), mmlu(["u", "v"], 1), mmlu(["u", "v"], "B")])
def test_options_are_shown_with_letters(given, loaded):
    assert loaded([given]) == [{"problem": SHOWN, "answer": "B", "choice": True}]


@pytest.mark.parametrize(
    "gap",
    [
        record(["u", None]),
        record(None),
        record(["u", "v"], None),
        record(["u", "v"], question=None),
        {"question": "q", "answer": "A"},
        {"options": ["u", "v"], "answer": "A"},
        {"question": "q", "options": ["u", "v"]},
    ],
)
def test_a_record_with_a_gap_is_dropped(gap, loaded):
    assert loaded([gap, record(["u", "v"])]) == loaded([record(["u", "v"])])


@pytest.mark.parametrize(
    "given, said",
    [
        (record([*"uvwxyzuvwxy"]), "zip() argument 2 is longer"),  # no letter K
        (record([{"key": "A"}, {"key": "B"}]), "column options, holds a dict"),
        (record(["u", "v"], "v"), "column answer, v is no letter of its 2 options"),
        (record(["u", "v"], "AB"), "column answer, AB is no letter"),
        (mmlu(["u", "v"], 2), "column answer, C is no letter"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_record(given, said, loaded):
    with pytest.raises(UserError) as refused:
        loaded([record(["u", "v"]) if "options" in given else mmlu(["u", "v"], 0), given])
    assert f"record 2, {said}" in str(refused.value)


FORMS = ["(A) u\n(B) v", "A) u\nB) v", "A. u\n B. v", "A: u, B: v", "**A.** u **B.** v"]
FORMS += [r"$\textbf{(A)}\ u \qquad \textbf{(B)}\ v$", "(a) u\r\n(b) v"]


@pytest.mark.parametrize("options", FORMS)
@pytest.mark.parametrize("gold", ["B", "(B)", "B.", "b", r"\text{(B)}"])
def test_a_letter_of_shown_options_is_graded_as_a_letter(gold, options, loaded):
    (problem,) = loaded([{"problem": f"q?\n{options}", "answer": gold}])
    responses = [r"\boxed{\text{(B) v}}", "So the answer is (B).", r"\boxed{\text{(A) u}}"]
    assert grade_all(responses, 3 * [problem], 3 * [False]) == [1, 1, 0]


@pytest.mark.parametrize(
    "gold, text",
    [
        ("B", "Which of the points A and B is nearer?"),
        ("C", "(A) 1 (B) 2"),
        ("2", "(A) 1 (B) 2"),
        ("AB", "(A) 1 (B) 2"),
        ("A", "Vitamin A."),
        ("K", "(A) (B) (C) (D) (E) (F) (G) (H) (I) (J) (K)"),
    ],
)
def test_other_golds_are_values(gold, text):
    assert shown_letter(gold, text) == ""
