"""Tests train.Policy: the head in float32, and the pass at θ_old.

test_architectures.py compares outputs and gradients of every kind of head with plain passes.
"""

import copy
from unittest.mock import patch

import pytest
import torch
from torch.autograd import grad

from infra import head as head_module
from infra.head import Float32Product
from infra.micro_batches import mini_batches, padded
from methods import PAPER_METHODS, packed
from train import Policy, pass_at_theta_old

ALL = range(24)  # the responses of the fixture `batch`
ADVANTAGES = torch.tensor([1.0, 0, -1, 0.5] * 6)
ADVANTAGES[8:12] = 0


def outputs(policy, batch, index=ALL):
    micro = padded(batch, list(index), has_advantage=True)
    return policy(micro.ids, micro.is_token)


def test_a_micro_batch_without_responses_has_no_outputs_and_a_gradient_of_zero(base, batch):
    """A rank without responses makes the same forward and backward passes as the other ranks."""
    out = outputs(Policy(base[0]), batch, [])
    assert {len(each) for each in out if each is not None} == {0}
    (gradient,) = grad(out.logprob.sum(), base[0].lm_head.weight)
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_a_certain_token_has_entropy_0(base):
    """0 log 0 = 0: a probability that underflows gives no NaN."""
    W = torch.tensor([[1.0], [-1.0]])
    with torch.no_grad():
        numbers = Policy(base[0]).logprob_of_block(torch.tensor([[1e4]]), torch.tensor([0]), W)
    assert [each.item() for each in numbers] == [0, 0]


def test_the_heads_gradient_is_summed_over_blocks_in_float32(base, batch, monkeypatch):
    """With bfloat16 weights, a block per token gives the gradient of one block, rounded once."""
    model = copy.deepcopy(base[0]).bfloat16()
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(model.config.vocab_size).bfloat16())
    gradients = []
    for size in (1, 10_000):
        monkeypatch.setattr(head_module, "LOGIT_BLOCK", size * model.config.vocab_size)
        logprob = outputs(Policy(model), batch, range(4)).logprob
        gradients.append(grad(logprob.sum(), list(model.lm_head.parameters())))
    for by_token, at_once in zip(*gradients, strict=True):
        error = (by_token.double() - at_once.double()).norm() / at_once.double().norm()
        assert error < 2e-4  # bfloat16 rounds to within 2e-3, and its sums err by more


def test_logits_exist_in_blocks_and_none_is_kept_for_the_backward_pass(base, batch, monkeypatch):
    V = base[0].config.vocab_size
    monkeypatch.setattr(head_module, "LOGIT_BLOCK", 10 * V)
    saved = set()

    def pack(x):
        saved.add(x.shape)
        return x

    with (
        patch.object(head_module, "float32_linear", wraps=head_module.float32_linear) as linear,
        torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
    ):
        outputs(Policy(base[0]), batch)
    assert max(len(call.args[0]) for call in linear.call_args_list) == 10
    assert saved and (10, V) not in saved


def test_a_gpus_product_is_exact_for_bfloat16_factors(monkeypatch):
    """Values and gradients are compared; torch.mm with `out_dtype` exists only on GPUs."""

    def mm(a, b, out_dtype):
        assert a.dtype == b.dtype == torch.bfloat16
        return (a.double() @ b.double()).to(out_dtype)

    monkeypatch.setattr(torch, "mm", mm)
    g = torch.Generator().manual_seed(0)
    h = torch.randn(6, 4, generator=g).bfloat16().requires_grad_()
    W = torch.randn(5, 4, generator=g).bfloat16().float().requires_grad_()
    upstream = torch.randn(6, 5, generator=g).bfloat16().float()
    ours, expected = Float32Product.apply(h, W), h.float() @ W.T
    torch.testing.assert_close(ours, expected)
    of_h, of_W = grad(ours, (h, W), upstream)
    wanted_h, wanted_W = grad(expected, (h, W), upstream)
    torch.testing.assert_close(of_W, wanted_W)
    torch.testing.assert_close(of_h, wanted_h)  # rounded to bfloat16, like h


@pytest.mark.parametrize("budget", [1, 150])
def test_old_log_probabilities_are_in_packed_order_for_any_micro_batches(base, batch, budget):
    policy = Policy(base[0])
    with torch.no_grad():
        whole = outputs(policy, batch)
    length = torch.tensor([len(each.tokens) for each in batch])
    advantage = ADVANTAGES.repeat_interleave(length)
    plan = mini_batches(batch, advantage, 8, budget)
    logprob, entropy, v = pass_at_theta_old(policy, plan, PAPER_METHODS["delta"])
    for ours, expected in ((logprob, whole.logprob), (entropy, whole.entropy)):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
        assert not ours.requires_grad
    tokens = packed(
        batch,
        rewards=ADVANTAGES,
        advantage=advantage,
        old_logprob=logprob,
        entropy=entropy,
    )
    assert torch.equal(tokens.token, whole.token)

    index, rows = (torch.cat(column) for column in zip(*v.parts, strict=True))
    expected = -torch.expm1(whole.logprob)[:, None] * whole.hidden  # (1 - p) h
    torch.testing.assert_close(rows, expected[index], rtol=1e-4, atol=1e-4)
    assert torch.equal(index.sort().values, torch.arange(len(expected)))
    assert not rows.requires_grad
