"""minimal.py is the specification of train.py: every step of both has the same numbers."""

import pytest
import torch
from references import two_sides
from toy_runs import PROBLEMS, read_lines

import minimal
import toy
import train
from delta import delta_coefficients, token_gradient_proxy


@pytest.mark.parametrize("method", ["delta", "dapo"])
def test_minimal_and_train_have_the_same_steps_and_accuracies(
    method, tmp_path, monkeypatch, capsys
):
    """Loss and gradient norm differ by rounding: train.py uses other batches in its passes."""
    flags = ["--method", method, "--steps", "5", "--seed", "5"]
    train.main([*flags, "--eval-data", PROBLEMS, "--output-dir", str(tmp_path)])
    before, *lines = read_lines(tmp_path / "metrics.jsonl")
    capsys.readouterr()
    problems = toy.problems

    def with_few_held_out(count, seed):
        return problems(48 if seed == 1 else count, seed)  # those of PROBLEMS

    monkeypatch.setattr(toy, "problems", with_few_held_out)
    steps = minimal.main(flags)

    assert len(lines) == len(steps) == 5
    for line, step in zip(lines, steps, strict=True):
        assert step["reward"] == line["reward"]
        assert step["loss"] == pytest.approx(line["loss"], abs=1e-6)
        assert step["grad_norm"] == pytest.approx(line["grad_norm"], rel=1e-3)
    printed = [line for line in capsys.readouterr().out.splitlines() if line[:8] == "accuracy"]
    assert printed == [
        f"accuracy {line['eval_accuracy']:.3f}, greedy {line['eval_greedy']:.3f}"
        for line in (before, lines[-1])
    ]


def test_token_weights_are_delta_coefficients_bit_for_bit():
    hidden, A = two_sides()
    logprob = -torch.rand(len(A), generator=torch.Generator().manual_seed(0))
    assert torch.equal(minimal.token_weights("dapo", hidden, logprob, A), torch.ones(len(A)))
    for advantage in (A, A.abs(), -A.abs()):  # both sides, and one of them empty
        expected = delta_coefficients(token_gradient_proxy(hidden, logprob), advantage)
        assert torch.equal(minimal.token_weights("delta", hidden, logprob, advantage), expected)
