"""python -m benchmarks, the speed benchmarks and the graders, at small sizes."""

import pytest
import torch
from models import SMALL
from toy_runs import refusal
from transformers import Qwen3Config

from benchmarks import gpu
from benchmarks.__main__ import main


def test_gpu_steps_train_and_are_tabulated(monkeypatch):
    """Three steps of a tiny model on the CPU; the first is not counted."""
    tiny = Qwen3Config(**(SMALL | {"max_position_embeddings": 512}))
    flags = gpu.FLAGS.replace("--max-new-tokens 512", "--max-new-tokens 24")
    steps = gpu.trained(tiny, flags, 3)
    assert [row["step"] for row in steps["metrics"]] == [2, 3]
    assert all(row["reward"] == 0.5 and row["grad_norm"] > 0 for row in steps["metrics"])
    table = dict(gpu.table_of(steps | {"planned bytes": 5e9}))
    assert list(table)[:4] == list(gpu.STAGES)
    assert table["peak memory, GB (planned, with 3 in reserve)"] == "0.0 (5.0)"
    seconds = sum(row["seconds_updating"] for row in steps["metrics"]) / 2  # two: also the median
    assert table["updating"].startswith(f"{seconds:.3g} s, ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_gpu_without_a_gpu_gets_one_line(capsys):
    assert "torch sees no GPU" in refusal(main, ["gpu"], capsys)
