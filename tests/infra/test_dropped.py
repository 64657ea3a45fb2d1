"""Tests infra/dropped.py: what is dropped, the reason that is printed, and what is kept."""

import json

import pytest
from tables import rows

from infra import dropped
from infra.dropped import (
    NEVER,
    NO_TEXT,
    PICTURE,
    PICTURED,
    REPEATED,
    TWO_GOLDS,
    bare,
    is_matchable,
    usable,
)
from infra.errors import UserError
from infra.problems import load_problems, load_sets


def problem(text: str, answer: str = "2", **more) -> dict:
    return {"problem": text, "answer": answer, **more}


def counts(said: str) -> dict[str, int]:
    """Reason -> count, from the lines that were printed."""
    lines = [line.split("; the first is ")[0].split(maxsplit=1) for line in said.splitlines()[1:]]
    return {reason: int(count) for count, reason in lines}


def write(path, *records) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_one_counter_names_every_reason_and_the_first_of_each(capsys):
    problems = [
        problem("1+1?"),
        problem("", "3"),
        problem("2+2?", "\\\\frac{8}{2}"),
        problem("Find the area.\n![](https://a.org/7.png)"),
        problem("Who?", ""),
        problem("$1 + 1$?", "2.0"),
        problem("3+3?", "5"),
        problem("3+3?", "6"),
        problem("1-1?", "0"),
        problem("(A) 1 (B) 2", "B", choice=True),
    ]
    assert usable(problems, "--data a") == [problems[0], *problems[8:]]
    said = capsys.readouterr().out
    assert said.startswith("--data a: 7 of 10 records are dropped\n")
    kinds = {NO_TEXT: 2, NEVER: 1, PICTURED: 1, REPEATED: 1, TWO_GOLDS: 2}
    assert counts(said) == kinds
    assert f"2 {TWO_GOLDS}; the first is record 7, '3+3?', '5'\n" in said
    assert f"1 {NEVER}; the first is record 3, '2+2?', {problems[2]['answer']!r}\n" in said
    assert usable([problems[0]], "--data a") == [problems[0]]
    assert capsys.readouterr().out == ""


def test_a_reward_of_the_users_own_reads_any_answer(capsys):
    problems = [problem("p", "proof"), problem("q", None), problem("p", "5"), problem("<img a>")]
    assert usable(problems, "--data a", whole=True) == problems[:2]
    assert counts(capsys.readouterr().out) == {REPEATED: 1, PICTURED: 1}


def test_programs_may_mention_pictures_and_have_no_gold():
    program = {"problem": "Rename every .jpg file.", "tests": [{"script": "assert f()"}]}
    assert usable([program], "--data a") == [program]


ESSAY = "The cat sat on the mat because it was tired of running around"


@pytest.mark.parametrize("gold", ["48/2 = 24 in May.\nIn all 72.", ESSAY, "['72']", '["a", "b"]'])
def test_a_set_whose_golds_are_mostly_texts_is_refused(gold):
    problems = [problem("p", "1"), problem("q", gold), problem("r", gold)]
    with pytest.raises(UserError) as refused:
        usable(problems, "--data a")
    said = str(refused.value)
    assert said.startswith(
        "--data a: 2 of 3 gold answers can never be matched; the first is record"
    )
    assert "--answer-column" in said and "\n" not in said


# ---- golds ---------------------------------------------------------------------------------------

DOUBLED = [
    r"\\frac{3}{4}",
    r"[0, \\frac{1}{2}]",
    r"90^\\circ",
    r"\\pi",
    r"x^2 \\le 3",
    r"\\{1,2\\}",
]
DOUBLED += [r"50\\%", r"\\text{Yes}", r"\\\\sqrt{2}", r"\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"]
EATEN = ["\frac{1}{2}", "\theta", "2\times 3", "\text{A}", "(0,1\right)", "x \neq 3", "\nabla f"]
EATEN += ["\beta", "\tan x", "x \to 0", "\rho", "\alpha", "\vec{a}"]
PAGES = [
    "x &lt; 3",
    "90&deg;",
    "&#960;",
    "&#x3c0;",
    "12&nbsp;cm",
    "12<br>",
    "<p>12</p>",
    "<i>x</i>",
]
PAGES += ["x<sup>2</sup>", "<math><mi>x</mi></math>", '<span class="a">4</span>']
SPELLED = [r"\u03c0", r"3\u00b0", r"[0, \u221e)", '"12"', "“yes”", "['x']", '["a", "b"]', "'7'"]


@pytest.mark.parametrize("gold", [*DOUBLED, *EATEN, *PAGES, *SPELLED])
def test_golds_in_another_encoding_are_counted(gold, tmp_path, capsys):
    assert not is_matchable(gold)
    records = [problem("p"), problem("q", gold)]
    assert load_problems(write(tmp_path / "a.jsonl", *records)) == records[:1]
    assert counts(capsys.readouterr().out) == {NEVER: 1}


MATCHED = [
    "f(3)<f(1)<f(5)",
    "a<b<c",
    "x<b, b>2",
    "x<b and b>2",
    "f''(x)",
    "f'",
    "-3^\\circ",
    "\\ne 3",
    "\\nu",
    "5\n",
]
MATCHED += [
    r"\begin{pmatrix}1&2\\ab&4\end{pmatrix}",
    r"\begin{cases}1\\\text{no}\end{cases}",
    "p;q",
]


@pytest.mark.parametrize("gold", MATCHED)
def test_golds_that_only_look_like_it_are_kept(gold):
    assert is_matchable(gold)


@pytest.mark.parametrize("table", ["golds", "contest", "outside"])
def test_labelled_golds_can_be_matched(table, monkeypatch):
    monkeypatch.setattr(dropped, "earnable", bool)  # the real one takes long
    is_matchable.cache_clear()
    assert [row["gold"] for row in rows(table) if not is_matchable(row["gold"])] == []
    is_matchable.cache_clear()


# ---- pictures ------------------------------------------------------------------------------------

PICTURES = [
    "Find the shaded area.\n\n![](https://cdn.example.org/7c.png)",
    "Find x. ![figure 1](fig1.svg)",
    "![](data:image/png;base64,iVBOR)",
    'The circle <img src="fig1.png" /> has radius 3.',
    "<image 1> Find x.",
    "<image>\nFind x.",
    "<image_2> Find x.",
    "<|image_pad|>Find x.",
    "<|vision_start|>Find x.",
    r"\begin{center}\includegraphics[width=3cm]{a}\end{center} Find x.",
    "See https://a.org/b.jpg?height=3 and find x.",
    "Find x in data:image/gif;base64,R0lG",
    "[image 1] Find x.",
]


@pytest.mark.parametrize("text", PICTURES)
def test_a_problem_that_points_at_a_picture_does_not_refuse_its_set(text, tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", problem(text), problem("1+1?"))
    assert load_problems(path) == [problem("1+1?")]
    assert counts(capsys.readouterr().out) == {PICTURED: 1}


def test_a_chat_with_parts_may_hold_a_picture(tmp_path, capsys):
    parts = [{"type": "image_url", "image_url": {"url": "a"}}, {"type": "text", "text": "x?"}]
    chat = [{"role": "user", "content": parts}]
    path = write(tmp_path / "a.jsonl", problem(chat), problem("1+1?"))
    assert load_problems(path) == [problem("1+1?")]
    assert counts(capsys.readouterr().out) == {PICTURED: 1}


NO_PICTURES = [
    "What is n![k]?",
    "How large is 5!(3)?",
    "[asy] draw((0,0)--(1,1)); [/asy]",
    "x<imax",
]
NO_PICTURES += [
    "See https://a.org/page.",
    "The image of f is [0, 1].",
    "a.png(x) = 1",
    "<i>x</i>",
]


@pytest.mark.parametrize("text", NO_PICTURES)
def test_other_texts_have_no_picture(text):
    assert not PICTURE.search(text)


# ---- repeats and leaks ---------------------------------------------------------------------------

EVALUATED = [
    "Find the number of ordered pairs $(a,b)$ with $a+b=12$ and $a,b>0$.",
    "Let $x$ be real with $x^2=49$ and $x<0$. Find $x$.",
    "What is the remainder of $7^{5}$ divided by 10?",
    "How many primes lie below 30?",
]
BOX = "Let's think step by step and put the result within \\boxed{}."
REWRITINGS = {
    "instruction": lambda text: f"{text} {BOX}",
    "before": lambda text: f"Solve the problem below.\n\n{text}",
    "brackets": lambda text: text.replace("$", "\\(", 1).replace("$", "\\)", 1),
    "display": lambda text: text.replace("$", "$$"),
    "blanks": lambda text: text.replace(". ", ".  ").replace("=", " = ") + "\n",
    "case": str.upper,
}


@pytest.mark.parametrize("rewriting", REWRITINGS.values(), ids=REWRITINGS)
@pytest.mark.parametrize("swapped", [False, True])
def test_evaluation_problems_that_are_trained_on_are_counted(rewriting, swapped, tmp_path, capsys):
    others = [problem(f"How many primes lie below {n}?") for n in (13, 300, 1000)]
    same = [problem(text) for text in EVALUATED]
    written = [problem(rewriting(text)) for text in EVALUATED]
    trained, held_out = (same, written) if swapped else (written, same)
    names = [
        write(tmp_path / "a.jsonl", *trained, others[0]),
        write(tmp_path / "b.jsonl", *others[1:], *held_out),
    ]
    problems, kept = load_sets(*names)
    assert (len(problems), len(kept)) == (5, 6)
    said = capsys.readouterr().out
    first = f"{held_out[0]['problem'][:60]!r}\n"
    assert said == f"4 of 6 problems of --eval-data {names[1]} are in --data: {first}"


def test_signs_and_numbers_make_other_problems():
    texts = [
        "1+2?",
        "1*2?",
        "12?",
        "1.2?",
        "1,2?",
        "(1+2)*3?",
        "1+2*3?",
        "5!?",
        "5?",
        "\\frac{1}{23}",
    ]
    texts += ["\\frac{12}{3}", "-1-2?", "|x|?", "x?"]
    assert len({bare(text) for text in texts}) == len(texts)


def test_a_short_text_is_no_part_of_another(tmp_path, capsys):
    names = [write(tmp_path / f"{text}.jsonl", problem(f"{text}=?")) for text in ("1+2", "11+2")]
    load_sets(*reversed(names))
    assert capsys.readouterr().out == ""
