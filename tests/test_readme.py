"""Tests README.md, RESULTS.md and the pages of docs/ and notebooks/: links and examples."""

import importlib
import inspect
import json
import re
import shlex
import textwrap
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from references import two_sides
from torch.distributed.run import get_args_parser

import evaluate
import minimal
from benchmarks import gain, plan
from benchmarks.__main__ import WHERE
from config import Config, parse_config
from infra.flags import spelled

PAGES = [
    ROOT / "README.md",
    ROOT / "RESULTS.md",
    ROOT / "toy/README.md",
    ROOT / "programs/README.md",
]
PAGES += [
    page for folder in ("docs", "notebooks", "results") for page in (ROOT / folder).rglob("*.md")
]
README = (ROOT / "README.md").read_text()
METRICS = (ROOT / "docs/metrics.md").read_text().split("## Metrics")[1]


def code_blocks(text: str, language: str = "") -> list[str]:
    """A page's fenced blocks with this tag, or with none."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for tag, block in blocks if tag == language]


def prose(page: Path) -> str:
    """A page's text, or the Markdown cells of a notebook."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


@cache
def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings: lower case, hyphens, no other signs."""
    text = re.sub(r"^```.*?^```$", "", prose(page), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


READ = [*PAGES, *sorted((ROOT / "notebooks").glob("*.ipynb"))]


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_points_to_a_file_and_a_heading(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not heading or heading in anchors(file.resolve()), target


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_page_that_is_named_exists(page):
    """Names in backticks, such as `docs/help.md`; after `git show` they are of another commit."""
    for name in re.findall(
        r"`((?:docs|notebooks|toy|programs|infra|benchmarks|tests|results)/[\w/]+\.(?:md|py|ipynb))",
        prose(page),
    ):
        assert (ROOT / name).exists(), name


def test_every_flag_that_is_named_exists():
    """Those with an underscore, --delta and --epsilon are TRL's; --power is an example."""
    settings = [Config, evaluate.Settings, minimal.Settings, gain.Size, plan.Cards]
    known = {spelled(option.name) for each in settings for option in fields(each)}
    known |= {text for action in get_args_parser()._actions for text in action.option_strings}
    for path in (*(ROOT / "benchmarks").glob("*.py"), ROOT / "tests/answers/tables.py"):
        known |= set(re.findall(r'"(--[\w-]+)"', path.read_text()))
    for path in (ROOT / "recipes").glob("*.diff"):
        added = re.findall(r"^\+    (\w+): \w+ = flag\(", path.read_text(), re.M)
        known |= set(map(spelled, added))
    known |= {"--delta", "--epsilon", "--power"}
    for page in PAGES:
        named = set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", prose(page)))
        assert {name for name in named if "_" not in name} <= known, page


def commands() -> list[str]:
    """Every command line in the pages' code blocks, without prompts and comments."""
    lines = []
    for page in PAGES:
        for block in code_blocks(page.read_text()):
            block = block.replace("\\\n", " ")  # a command on two lines
            lines += [line.removeprefix("$ ").split("  #")[0] for line in block.splitlines()]
    return [line for line in lines if re.match(r"(make|torchrun|(.venv/bin/)?python) ", line)]


def test_every_command_is_accepted():
    """The flags of every command are parsed; no command runs."""
    found = commands()
    assert len(found) > 15
    makefile = (ROOT / "Makefile").read_text()
    for line in found:
        program, *words = shlex.split(line)
        if program == "make":
            assert f"\n{words[0]}:" in makefile, line
        elif words[0] == "-m":
            importlib.import_module(words[1])
            assert words[1] != "benchmarks" or words[2] in WHERE, line
        elif words[0] == "-c":
            compile(words[1], line, "exec")
        elif "train.py" in words:
            parse_config(words[words.index("train.py") + 1 :])
        elif "evaluate.py" in words:
            flags = words[words.index("evaluate.py") + 1 :]
            if flags[0] != "compare":
                evaluate.parse_config(flags)
        else:
            assert (ROOT / words[0]).exists(), line


def test_every_logged_metric_is_explained(finished):
    lines = (finished / "metrics.jsonl").read_text().splitlines()
    logged = {name for line in lines for name in json.loads(line)} | {"eval_greedy"}
    assert {"loss", "seconds_grading", "mismatch", "eval_accuracy"} < logged
    assert logged <= set(re.findall(r"`(\w+)`", METRICS))


def test_the_algorithm_is_that_of_minimal():
    body = textwrap.indent(code_blocks(README, "python")[1], 4 * " ")
    assert inspect.getsource(minimal.token_weights).endswith(body)


def test_the_drop_in_runs(capsys):
    h, A = two_sides()
    W, token = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)), torch.arange(61) % 7
    logprob = (h @ W.T / 0.9).log_softmax(1)[torch.arange(61), token]
    known = {"token": token, "logprob": logprob, "temperature": 0.9, "equal_rewards": A == 0}
    known |= {"h": h, "A": A + 1e-4 * (A == 0), "lm_head": lambda h: h @ W.T}
    code = code_blocks(README, "python")[0]
    exec(code, known)
    expected = A * minimal.token_weights("delta", h, logprob, A)
    torch.testing.assert_close(known["A"], expected, rtol=1e-4, atol=1e-5)
    exec(code, known | {"temperature": 1.0})
    exec(code, known | {"h": h.roll(1, dims=0)})
    right, warmer, shifted = (
        float(x) for x in re.findall(r"tensor\((.+)\)", capsys.readouterr().out)
    )
    assert right < 1e-6 and warmer > 0.01 and shifted > 0.01
