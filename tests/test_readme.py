"""README.md: what it names exists, and its example runs."""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from references import token_batch, token_rows

import methods
import train
from infra.rows import Rows
from methods import Method

README = (ROOT / "README.md").read_text()
TABLE = README.split("## From equation to function to test to notebook")[1].split("## ")[0]
FLAGS = README.split("## Every method and ablation is a flag")[1].split("## ")[0]
METRICS = README.split("## What a run writes")[1].split("## ")[0]


def test_every_function_in_the_table_exists():
    named = set(re.findall(r"`(\w+)\.(\w+)`", TABLE)) - {("test_ablations", "py")}
    assert len(named) > 15
    for module, name in named:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_every_test_in_the_table_exists():
    written = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    named = set(re.findall(r"\b(test_\w+)`", TABLE))
    assert len(named) > 18
    for name in named:
        assert f"def {name}(" in written, name


def test_every_flag_of_the_tables_is_accepted():
    """The cells of the flag table, one value after the other: `--K 2`, `--K 3`, ..."""
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


def test_every_metric_that_a_run_logs_is_explained():
    explained = set(re.findall(r"`(\w+)`", METRICS))
    source = Path(train.__file__).read_text()
    body = source[source.index("def train_step") : source.index("@dataclass\nclass Run")]
    logged = set(re.findall(r'^ +"(\w+)":', body, re.MULTILINE)) | {"eval_accuracy"}
    assert {"loss", "reward", "seconds"} < logged
    assert logged <= explained


def executed(code: str) -> dict:
    """The names that a piece of the README defines, as if it stood in methods.py."""
    namespace = dict(vars(methods))
    exec(compile(code, "README.md", "exec"), namespace)
    return namespace


def test_the_example_with_hidden_states_runs():
    section = README.split("## Your own method")[1]
    code = section.split("```python\n")[3].split("```")[0]
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
    """The README's `surprise`, as it stands there, in the names of methods.py."""
    section = README.split("## Your own method")[1]
    code = section.split("```python\n")[1].split("```")[0]
    namespace = executed(code)
    record = Method(weights=namespace["surprise"], flags=("power",))

    tokens = token_batch([4, 6, 3])
    weights = record.weights(tokens, SimpleNamespace(power=power))
    expected = (-tokens.logprob) ** power
    torch.testing.assert_close(weights, expected / expected.mean())
