"""Tests that the notebooks run from top to bottom, in a copy, and have the required form."""

import io
import json
import os
import re
import shutil
import subprocess
import symtable
import sys
from contextlib import redirect_stdout
from importlib import import_module

import course
import forked
import pytest
import torch
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
for_each = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


@for_each
def test_lesson_runs_with_the_pieces_of_earlier_ones_and_grades_answers_correctly(path, tmp_path):
    """It runs in a separate process, because the cells set the state of matplotlib and torch."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    assert forked.call(course.run, path, tmp_path / "notebooks") == []


@for_each
def test_check_has_no_name_that_could_replace_a_students_helper(path):
    """A check runs after the student's cell, with the same global names."""
    checks = [cell for cell in course.code_cells(path) if cell.exercise]
    assert checks
    for cell in checks:
        table = symtable.symtable(cell.source, cell.name, "exec")
        bound = [x.get_name() for x in table.get_symbols() if x.is_assigned() or x.is_imported()]
        assert all(name.startswith("_") for name in bound), bound
        assert "global " not in cell.source


# ---- what is printed about a refused answer ------------------------------------------------------


def double(x):
    return 2 * x


def double_but_small_ones(x):
    return torch.where(x.abs() < 1, x, 2 * x)


def nan_where_negative(x):
    return 2 * x.sqrt() ** 2


def minus_half(x):
    return -x


def zero(x):
    return 0 * x


def a_little_more(x):
    return 2.009 * x


def shuffled(x):
    return 2 * x.flip(0)


def calls_itself(x):
    return calls_itself(x)


def double_but_the_first(x):
    return torch.cat([x[:1] + 9, 2 * x[1:]])


def with_an_error(x):
    first, second = x
    return first + second


def half(x):
    return x.clone()


def doubled_in_place(x):
    return x.mul_(2)


def parts(function, x):
    return {"sum": function(x).sum(), "all": function(x)}


REFUSALS = [  # answer, cases, arguments of `check`, what is printed
    (
        minus_half,
        ["plain", "long"],
        {},
        "not right, plain: yours is -0.5 times what is expected. HINT",
    ),
    (double_but_small_ones, ["plain", "small"], {}, "small: 1 of 2 numbers differ, the first at"),
    (double_but_small_ones, ["small"], {}, "at [0]: 0.5, not 1. HINT"),
    (nan_where_negative, ["plain"], {}, "1 of 3 numbers are NaN. HINT"),
    (shuffled, ["plain"], {}, "the right numbers in another order. HINT"),
    (half, ["many"], {"tolerance": 0}, "yours is 0.5 times"),
    (shuffled, ["many"], {}, "1 times as long as expected, with a cosine of 0.5"),
    (double_but_the_first, ["many"], {"tolerance": 1e-5}, "1 of 20000 numbers differ, the first"),
    (doubled_in_place, ["plain"], {}, "it overwrites its argument"),
    (doubled_in_place, ["plain"], {"mistakes": {"by a mistake": double}}, "make a copy.\n"),
    (zero, ["plain"], {}, "3 of 3 numbers differ, the first at [0]: 0, not 6. HINT"),
    (a_little_more, ["plain"], {}, "the first at [0]: 6.027, not 6. HINT"),
    (calls_itself, ["plain"], {}, "plain: it calls a function that does this already"),
    (minus_half, ["plain"], {"run": parts}, "plain: sum: -2, not 4. HINT"),
    (shuffled, ["plain"], {"run": parts}, "plain: all: the right numbers in another order"),
]


def refusals(folder):
    """What `check` prints for each answer of REFUSALS, and for two wrong ones that are numbers."""
    sys.path.insert(0, str(folder))
    check, said = import_module("helpers").check, []
    inputs = {"plain": torch.tensor([3.0, -2.0, 1.0]), "small": torch.tensor([0.5, 4.0])}
    inputs |= {"long": torch.arange(4.0), "many": torch.arange(20_000.0)}
    for answer, names, named, _ in REFUSALS:
        cases = {name: (inputs[name],) for name in names}
        with redirect_stdout(io.StringIO()) as printed:
            assert check(answer, double, "HINT", cases, **named) is False
        said.append(printed.getvalue())
    for answer in ([1.0, 5.0, 3.0], [2.0, 4.0, 6.0]):
        with redirect_stdout(io.StringIO()) as printed:
            assert check(answer, [1.0, 2.0, 3.0], "HINT") is False
        said.append(printed.getvalue())
    return said


def own_error(folder):
    sys.path.insert(0, str(folder))
    with pytest.raises(ValueError, match="too many values to unpack"):
        import_module("helpers").check(with_an_error, double, "HINT", {"": (torch.ones(3),)})


def test_error_in_an_answers_own_lines_is_not_caught():
    forked.call(own_error, ROOT / "notebooks")


def test_refused_answer_hears_which_case_failed_and_how():
    *of_functions, of_one, of_all = forked.call(refusals, ROOT / "notebooks")
    for (answer, names, _, expected), printed in zip(REFUSALS, of_functions, strict=True):
        assert expected in printed, answer.__name__
        first = f"not right, {names[0]}: " in printed and ": it " not in printed
        assert ("HINT" in printed) == first
    assert of_one == "not right: 1 of 3 differ. HINT\n"  # it does not say which
    assert of_all == "not right: yours is 2 times what is expected. HINT\n"


# ---- points ----------------------------------------------------------------------------------


def all_answers(folder):
    """The mine.py of a student who has solved everything."""
    sys.path.insert(0, str(folder))
    return course.answers_before(folder / "9.ipynb")


BAR = "\n\n# ---- "  # before each answer of a mine.py
WRONG = {  # piece -> an edit of its solution, and what is printed about it
    "group_advantages": ("(group_size - 1)", "group_size", "with the biased variance"),
    "inverse_cdf": ("u[:, None] * F[:, -1:]", "u[:, None]", "without care for a u above"),
    "clipped_surrogate": ("torch.min(r", "torch.max(r", "with the maximum"),
    "centroids": ("alpha * A", "A", "if α is left out"),
    "token_gradient_proxy": ("-torch.expm1(logprob)", "logprob.exp()", "with p in place of 1 - p"),
    "margins": ("2 * v @", "v @", "without the factor 2"),
    "token_weights": ("clamp(min=1e-6)", "clamp(min=0)", "without ε in γ"),
    "train_step": ("(-(rho[some]", "((rho[some]", "with the sign turned round"),
}


CHEATS = {  # piece -> a wrong answer, and what is printed about it
    "group_advantages": ("while True:\n    pass", "never ended: stopped after 20 seconds"),
    "inverse_cdf": ("import os\nos._exit(0)", "it ended the process"),
    "clipped_surrogate": ('print("right")\nraise SystemExit', "SystemExit: , raise SystemExit"),
    "centroids": (
        "import helpers\nhelpers.compare = print\n\ndef centroids(v, A, alpha=None):\n    return v",
        "not right, without α: shape (60, 5)",
    ),
    "token_gradient_proxy": (
        'print("right shape?")\n\ndef token_gradient_proxy(h, logprob):\n    return 0 * h',
        "not right, N = 40: ",
    ),
    "margins": (
        "from helpers import check\n\ndef margins(v, A, *mu):\n    check(1, 1, '')\n    return A",
        "not right, 60 tokens: ",
    ),
    "token_weights": (
        "def token_weights(*a):\n    1 / 0",
        "ZeroDivisionError: division by zero, in the case: K = 1, 1 / 0",
    ),
    "train_step": ("def check(*a):\n    return True", "NameError: name 'train_step'"),
}


def graded(folder):
    """What the program prints about the hand-ins in a folder, with a shorter limit."""
    code = "import sys, grade; grade.LIMIT = 20; grade.main(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, folder],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "notebooks")])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_right_answers_get_points_and_a_wrong_one_hears_its_mistake(tmp_path):
    """Refused attempts are graded, too."""
    parts = forked.call(all_answers, ROOT / "notebooks").split(BAR)
    parts = {part.partition("\n")[0]: part for part in parts}
    for piece, (old, new, _) in WRONG.items():
        assert parts[piece].count(old) == 1
        parts[piece] = parts[piece].replace(old, new)
    parts["margins"] = f"not yet right: {parts['margins']}"
    del parts["predicted"]
    (tmp_path / "anna.py").write_text(BAR.join(parts.values()))
    said = graded(tmp_path)
    marks = re.findall(r"(\w+) (\d+) of (\d+)", said.partition("points (")[2])
    assert len(marks) > len(WRONG) + 5
    for name, points, most in marks:
        assert int(points) == (0 if name in {*WRONG, "predicted"} else int(most)), name
    assert "not handed in: predicted\n" in said
    for piece, (_, _, heard) in WRONG.items():
        assert re.search(f"{piece}: not right.*You get this {re.escape(heard)}", said), piece


def test_wrong_answers_that_cheat_or_never_end_get_no_points_and_the_next_one_is_graded(tmp_path):
    parts = [f"{piece}\n{wrong}\n" for piece, (wrong, _) in CHEATS.items()]
    last = "answer\nanswer = [5 / 24, -7 / 24, -7 / 24]\n"
    (tmp_path / "anna.py").write_text(BAR.join(["", *parts, last]))
    said = graded(tmp_path)
    assert re.search(r"anna.py: 1 of \d+ points", said) and "answer 1 of 1" in said
    for piece, (_, heard) in CHEATS.items():
        assert f"    {piece}: {heard}" in said, piece


def test_notebook_can_be_handed_in_and_other_files_are_named(tmp_path):
    cells = course.read(ROOT / "notebooks" / "3_update.ipynb")
    (cell,) = [
        cell
        for cell in cells
        if cell["cell_type"] == "code" and "def token_gradient_proxy" in "".join(cell["source"])
    ]
    cell["source"] = [
        "def token_gradient_proxy(h, logprob):\n",
        "    return h * (1 - logprob.exp())[:, None]",
    ]
    (tmp_path / "b.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "c.ipynb").write_text("no JSON")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "b-checkpoint.ipynb").write_text("not a hand-in")
    (tmp_path / "d.py").write_bytes(b"\xff no answer")
    b, c, d = re.findall(r"/(?=[bcd]\.).*\n(?:    .*\n)*", graded(tmp_path))
    assert "1 of 2 points (centroids 0 of 1, token_gradient_proxy 1 of 1)" in b
    assert "not handed in: centroids" in b
    assert "c.ipynb: 0 points, because this is no notebook" in c
    assert re.search(r"d.py: 0 of \d\d points", d)
    command = [sys.executable, ROOT / "notebooks" / "grade.py", tmp_path / "nothere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == f"{tmp_path / 'nothere'}: there is no such file or folder\n"


# ---- the duel ------------------------------------------------------------------------------------

RULE = """
def weigh(tokens):
    weight = FLOOR + torch.where(tokens.advantage < 0, 1 - tokens.logprob.exp(), 1.0)
    return weight / weight.mean()
"""


def trainings(folder):
    """The number of runs trained with a constant of the rule, again with it, and with another."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    namespace, found, trained = {"__name__": "__main__"}, [], []
    for cell in course.code_cells(folder / "6_duel.ipynb"):
        if not cell.exercise:
            course.execute(cell.name, cell.source, namespace)
        if "def runs(" in cell.source:
            break
    namespace["trained"] = lambda *arguments: trained.append(arguments) or [0.5]
    for floor in (0.02, 0.02, 0.5):
        course.execute("rule", f"FLOOR = {floor}\n{RULE}", namespace)
        namespace["runs"](namespace["weigh"], 4e-4, range(2))
        found.append(len(trained))
    return found


def test_a_finished_run_is_known_by_the_weights_of_its_rule(tmp_path):
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    assert forked.call(trainings, tmp_path / "notebooks") == [2, 2, 4]


# ---- a host --------------------------------------------------------------------------------------


@for_each
def test_lesson_can_be_opened_on_a_host(path):
    """A link to the notebook itself follows the title, and one cell prepares the host."""
    link = r"\[Open in Colab\]\(https://colab.research.google.com/github/[\w-]+/[\w.-]+/blob/main/"
    found = re.fullmatch(link + r"notebooks/(.*)\)", course.read(path)[0]["source"][2].strip())
    assert found[1] == path.name
    assert course.code_cells(path)[0].source == course.code_cells(NOTEBOOKS[0])[0].source


def test_host_cell_finds_the_notebooks_again_or_names_what_to_replace(tmp_path, monkeypatch):
    """Here `git clone` and pip are only recorded; the clone makes the folder."""
    cell = re.sub('COPY = ".*?"', 'COPY = "OWNER/NAME"', course.code_cells(NOTEBOOKS[0])[0].source)
    asked = []

    def run(command, check):
        asked.append(command[0])
        (tmp_path / "delta" / "notebooks").mkdir(parents=True, exist_ok=True)
        (tmp_path / "delta" / "notebooks" / "helpers.py").touch()

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="COPY above"):
        exec(cell, {})
    for begin in (".", ".", "delta", "delta/notebooks"):  # folders where a kernel may start again
        monkeypatch.chdir(tmp_path / begin)
        exec(cell.replace("OWNER/NAME", "you/your-copy"), {})
        assert (tmp_path / "delta" / "notebooks").samefile(".")
    assert asked.count("git") == 1


# ---- outputs -------------------------------------------------------------------------------------


@for_each
def test_notebook_is_committed_with_clean_outputs(path):
    assert path.stat().st_size < 800_000
    cells = [cell for cell in course.read(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))

    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    for output in outputs:
        assert output["output_type"] != "error" and output.get("name") != "stderr"
        assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
        if "image/png" in output.get("data", {}):
            assert len(output["metadata"]["image/png"]["alt"]) >= 40
    assert str(ROOT) not in path.read_text()
