"""README.md: what it names exists, and its examples run."""

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from references import token_batch, token_rows

import methods
import toy
import train
from benchmarks.trl_delta import plain_forward, readme_trainer
from delta import delta_coefficients, token_gradient_proxy
from infra.log import mismatch
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
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
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
    logged |= mismatch(torch.zeros(2), torch.zeros(2)).keys()
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


# ---- DelTA in TRL's trainer ----------------------------------------------------------------------


class OneRank:
    """accelerate's Accelerator, as far as README's class asks."""

    process_index = 0

    def gather(self, x):
        return x


class StandIn:
    """What README's class finds in TRL's GRPOTrainer: a batch, and its log-probabilities."""

    def __init__(self, lm, batch):
        self.model, self.batch = lm, batch
        self.accelerator = OneRank()
        self.args = SimpleNamespace(per_device_train_batch_size=2)

    def _generate_and_score_completions(self, examples):
        return dict(self.batch)

    def _get_per_token_logps_and_entropies(self, model, ids, seen, T, size):
        parts = []
        for rows, mask in zip(ids.split(size), seen.split(size), strict=True):
            logits = model(input_ids=rows, attention_mask=mask).logits[:, -T - 1 : -1]
            chosen = logits.log_softmax(dim=2).gather(2, rows[:, -T:, None]).squeeze(2)
            parts.append(chosen)
        return torch.cat(parts), None, None


def padded(rows: list[list[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) of lists of tokens, 0 where nothing is."""
    side = "left" if left else "right"
    ids = [torch.tensor(row) for row in rows]
    ones = [torch.ones(len(row), dtype=torch.long) for row in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(ids, True, padding_side=side), pad(ones, True, padding_side=side)


@pytest.mark.parametrize("tools", [False, True])
def test_the_trainer_for_trl_weighs_each_token_by_its_coefficient(tools, monkeypatch):
    """README's class on a padded batch, against plain forward passes without padding."""
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(GRPOTrainer=StandIn))
    torch.manual_seed(0)
    lm = toy.build_model().eval()
    prompts = [[5, 6, 7], [5, 6, 7], [8, 9, 10, 11, 12], [8, 9, 10, 11, 12], [4]]
    completions = [[13, 14, 15, 16], [9], [17, 3, 22], [6, 7, 8, 9, 10, 11], [5, 20]]
    advantages = torch.tensor([0.7, -0.7, -1.5, 1.5, 0.0])
    batch = {"advantages": advantages}
    batch["prompt_ids"], batch["prompt_mask"] = padded(prompts, left=True)
    batch["completion_ids"], batch["completion_mask"] = padded(completions, left=False)
    mask = batch["completion_mask"].bool()
    if tools:  # the last token of each response came from a tool
        batch["tool_mask"] = torch.roll(batch["completion_mask"], -1, dims=1)
        batch["tool_mask"][3, -1] = 0  # a row without padding
        mask = mask & batch["tool_mask"].bool()
        assert mask.sum(dim=1).tolist() == [3, 0, 2, 5, 1]

    result = readme_trainer()(lm, batch)._generate_and_score_completions([])

    kept = mask.sum(dim=1).tolist()
    pairs = zip(prompts, completions, strict=True)
    passes = [plain_forward(lm, *pair) for pair in pairs]
    hidden = torch.cat([h[:count] for (h, _), count in zip(passes, kept, strict=True)])
    logprob = torch.cat([p[:count] for (_, p), count in zip(passes, kept, strict=True)])
    per_token = advantages.repeat_interleave(torch.tensor(kept))
    weights = delta_coefficients(token_gradient_proxy(hidden, logprob), per_token)
    assert weights.max() - weights.min() > 0.1

    torch.testing.assert_close(result["advantages"][mask], weights * per_token)
    assert (result["advantages"][~mask] == 0).all()
    assert result["completion_ids"] is batch["completion_ids"]
