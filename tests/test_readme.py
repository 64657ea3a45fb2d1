"""README.md, RESULTS.md and docs/: named files and functions exist, and examples run."""

import importlib
import inspect
import re
import shlex
import textwrap
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from infra.evaluation_flags import GROUPS
from references import token_batch, token_rows

import bench
import infra.log
import methods
import train
from infra.flags import Parser
from infra.rows import Rows
from methods import Method

PAGES = [ROOT / "README.md", ROOT / "RESULTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()
EQUATIONS = (ROOT / "docs/equations.md").read_text()
TABLE, FLAGS = EQUATIONS.split("## Every method and ablation is a flag")
EXTENDING = (ROOT / "docs/extending.md").read_text()
METRICS = (ROOT / "docs/running.md").read_text().split("## Metrics")[1]


def code_blocks(text: str, language: str = "") -> list[str]:
    """A page's fenced blocks with this tag, or with none."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


# ---- links and commands --------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_points_to_a_file(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_every_page_is_linked_from_readme():
    """The link may be direct or through other pages."""
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        seen.add(page)
        for target in re.findall(r"\]\(([^)#]+\.md)\)", page.read_text()):
            path = (page.parent / target).resolve()
            if path not in seen:
                ahead.append(path)
    assert set(PAGES) <= seen


def commands() -> list[str]:
    """Every command line in the pages' code blocks, without prompts and comments."""
    lines = []
    for page in PAGES:
        for block in code_blocks(page.read_text()):
            lines += [line.removeprefix("$ ").split("  #")[0] for line in block.splitlines()]
    return [line for line in lines if re.match(r"(make|torchrun|(.venv/bin/)?python) ", line)]


def test_every_command_is_accepted():
    """The flags of every command are parsed; no command runs."""
    found = commands()
    assert len(found) > 15
    makefile = (ROOT / "Makefile").read_text()
    for line in found:
        program, *words = shlex.split(line)
        scripts = [i for i, word in enumerate(words) if word.endswith(".py")]
        if program == "make":
            assert f"\n{words[0]}:" in makefile, line
        elif words[0] == "-m":
            importlib.import_module(words[1])
        else:
            script, flags = words[scripts[0]], words[scripts[0] + 1 :]
            if script == "train.py":
                train.parse_config(flags)
            elif script == "bench.py":
                bench.parse_arguments(flags)
            else:
                assert script == "evaluate.py"
                if flags[0] != "compare":
                    Parser(GROUPS, prog="evaluate.py", description="").parse_args(flags)


def test_every_named_benchmark_exists():
    named = set()
    for page in PAGES:
        named |= set(re.findall(r"bench\.py (\w+)", page.read_text()))
    assert {"methods", "plan", "verify"} < named
    assert named <= set(bench.WHERE)


# ---- README --------------------------------------------------------------------------------------


def test_the_algorithm_is_quoted_from_delta():
    (block, *_) = code_blocks(README, "python")
    assert "pieces.normalise(lam)" in block
    assert textwrap.indent(block, "    ") in (ROOT / "delta.py").read_text()


def test_the_files_have_about_as_many_lines_as_the_table_says():
    counted = re.findall(r"^\| `(\w+\.py)` \| (\d+) \|", README, re.MULTILINE)
    assert len(counted) == 9
    for name, count in counted:
        lines = len((ROOT / name).read_text().splitlines())
        assert abs(lines - int(count)) <= 0.2 * lines, f"{name} has {lines} lines"


def test_the_memory_table_is_part_of_the_estimated_table():
    rows = [line for line in README.splitlines() if re.match(r"\| (Qwen3|8B|14B) \|", line)]
    assert len(rows) == 5
    assert set(rows) <= set((ROOT / "docs/results/memory.md").read_text().splitlines())


# ---- docs/equations.md and docs/running.md -------------------------------------------------------


def test_every_function_in_the_table_exists():
    named = set(re.findall(r"`(\w+)\.(\w+)`", TABLE)) - {("test_ablations", "py")}
    assert len(named) > 15
    for module, name in named:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_every_test_in_the_table_exists():
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"\b(test_\w+)`", TABLE))
    assert len(named) > 18
    for name in named:
        assert f"def {name}(" in written, name


def test_every_flag_in_the_tables_is_accepted():
    """Every value in the flag table is parsed by itself: `--K 2`, `--K 3`, ..."""
    accepted = 0
    for cell in re.findall(r"\| ([^|]*`--[^|]*) \|", FLAGS):
        flag = ""
        for code in re.findall(r"`([^`]+)`", cell):
            words = code.split()
            if words[0].startswith("--"):
                flag = words[0]
            else:
                words = [flag, *words]
            if flag == "--select-share":
                words += ["--select", "top"]
            train.parse_config(words)
            accepted += 1
    assert accepted > 20


def test_every_logged_metric_is_explained():
    explained = set(re.findall(r"`(\w+)`", METRICS))
    logging = (train.train_step, train.update, train.evaluate)
    logging += (infra.log.rollout_metrics, infra.log.mismatch)
    source = "".join(inspect.getsource(function) for function in logging)
    logged = set(re.findall(r'^ +"(\w+)":', source, re.MULTILINE))
    logged |= set(re.findall(r'metrics(?: = \{|\[)"(\w+)"', source))
    source += inspect.getsource(train.sample)
    logged |= {f"seconds_{stage}" for stage in re.findall(r'watch\.lap\("(\w+)"\)', source)}
    logged.add("seconds")
    assert {
        "loss",
        "reward",
        "seconds_grading",
        "mismatch",
        "eval_accuracy",
        "eval_greedy",
    } < logged
    assert logged <= explained


# ---- examples ------------------------------------------------------------------------------------


def executed(code: str) -> dict:
    """The names that a page's example defines when run inside methods.py."""
    namespace = dict(vars(methods))
    exec(compile(code, "docs/extending.md", "exec"), namespace)
    return namespace


def test_the_example_with_hidden_states_runs():
    code = code_blocks(EXTENDING, "python")[2]
    definitions, record = code.split('\n    "long_states": ')
    namespace = executed(definitions)
    record = eval(record.split("),  ")[0] + ")", namespace)

    hidden = torch.randn(13, 4, generator=torch.Generator().manual_seed(0))
    kept = record.keep(token_rows(hidden, None), None)
    tokens = token_batch([4, 6, 3], kept=Rows(kept, torch.arange(13), 13))
    weights = record.weights(tokens, None)
    torch.testing.assert_close(weights, hidden.norm(dim=1) / hidden.norm(dim=1).mean())


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_the_example_method_runs(power):
    """`rarity` has the same lines in README and docs/extending.md, and runs in methods.py."""
    code = code_blocks(README, "python")[1]
    assert code == code_blocks(EXTENDING, "python")[0]
    namespace = executed(code)
    record = Method(weights=namespace["rarity"])

    tokens = token_batch([4, 6, 3])
    weights = record.weights(tokens, SimpleNamespace(power=power))
    expected = (-tokens.logprob) ** power
    torch.testing.assert_close(weights, expected / expected.mean())
