"""Tests infra/choices.py: the options of a problem, and the letter of the right one."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.errors import UserError
from infra.folder import write_lines
from infra.grading import grade_all
from infra.problems import load_problems, shown_letter

SHOWN = "q\n(A) u\n(B) v\nAnswer with the letter."


def record(options, answer="B", **more):
    """A record of MMLU-Pro."""
    return {"question": "q", "options": options, "answer": answer, "answer_index": 1} | more


def mmlu(choices, answer):
    return {"question": "q", "choices": choices, "answer": answer, "subject": "s"}


@pytest.fixture
def loaded(tmp_path):
    """loaded(records) returns their problems."""

    def of(records):
        write_lines(tmp_path / "a.jsonl", records)
        return load_problems(str(tmp_path / "a.jsonl"))

    return of


@pytest.mark.parametrize(
    "given",
    [record(["u", "v"]), mmlu(["u", "v"], 1), mmlu(["u", "v"], 1.0), mmlu(["u", "v"], "B")],
)
def test_options_are_shown_with_letters(given, loaded):
    assert loaded([given]) == [{"problem": SHOWN, "answer": "B", "choice": True}]


@pytest.mark.parametrize(
    "gap",
    [
        record(["u", None]),
        record(None),
        record(""),
        record(["u", "v"], None),
        record(["u", "v"], question=None),
        {"question": "q", "answer": "A"},
        {"options": ["u", "v"], "answer": "A"},
        {"question": "q", "options": ["u", "v"]},
    ],
)
def test_a_record_with_a_gap_is_dropped(gap, loaded):
    assert loaded([gap, record(["u", "v"])]) == loaded([record(["u", "v"])])


NO_LIST = "its options are not a list of 2 to 10 texts"


@pytest.mark.parametrize(
    "given, said",
    [
        (record("u,v"), NO_LIST),
        (record({"A": "u", "B": "v"}), NO_LIST),
        (record(["u"]), NO_LIST),
        (record([*"uvwxyzuvwxy"]), NO_LIST),
        (record([{"key": "A"}, {"key": "B"}]), "column options, holds a dict"),
        (record(["u", "v"], "v"), "column answer, v is not a letter of its 2 options"),
        (record(["u", "v"], "AB"), "column answer, AB is not a letter"),
        (record(["u", "v"], "1"), "column answer, 1 is not a letter"),  # only MMLU's is an index
        (mmlu(["u", "v"], 2), "column answer, 2 is not a letter"),
        (mmlu(["u", "v"], True), "column answer, holds a bool"),
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


# ---- options in columns of their own -------------------------------------------------------------

WORDS = ["u", "v", "w", "x"]


def in_columns(names, golds, words=WORDS):
    """One record per gold, with a word in each of these columns."""
    return [
        {"question": f"q{i}", **dict(zip(names, words, strict=True)), "answer": gold}
        for i, gold in enumerate(golds)
    ]


@pytest.mark.parametrize(
    "names, golds",
    [
        ("ABCD", "BCA"),
        ("ABCD", [3, 4, 1]),  # KMMLU
        (["option_a", "option_b", "option_c", "option_d"], "CDA"),
        (["Option A", "Option B", "Option C", "Option D"], "wxu"),
        (["opa", "opb", "opc", "opd"], [2, 0, 3]),  # MedMCQA
        (["option1", "option2", "option3", "option4"], ["2", "3", "1"]),  # WinoGrande
        (["ending0", "ending1", "ending2", "ending3"], ["2", "3", "1"]),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_options_in_columns_that_the_model_would_not_see_are_refused(
    names, golds, suffix, tmp_path
):
    records = in_columns(names, golds)
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        write_lines(path, records)
    else:
        pq.write_table(pa.Table.from_pylist(records), path)
    with pytest.raises(UserError, match=f"not see the options in {', '.join(names)}: write them"):
        load_problems(str(path), "question", "answer")


def test_options_that_the_problems_show_may_stand_in_columns_too(loaded):
    records = in_columns("ABCD", "BA")
    shown = [each | {"question": f"{each['question']} (A) u (B) v"} for each in records]
    assert [each["answer"] for each in loaded(shown)] == ["B", "A"]


@pytest.mark.parametrize("a, b, gold", [(4, 2, 2), ("4", "2", "2"), (3, 4, 7)])
def test_numbers_of_the_problem_are_no_options(a, b, gold, loaded, capsys):
    (problem,) = loaded([{"problem": "?", "a": a, "b": b, "answer": gold}])
    assert problem == {"problem": "?", "answer": str(gold)}
    assert "the model does not see a, b\n" in capsys.readouterr().out
