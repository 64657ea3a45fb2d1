"""infra/policy.py: packed rows against unpadded forward passes, and old log-probabilities."""

import copy

import pytest
import torch
from infra.head import Head, TokenLogprobs, give_float32_head, product, token_logprobs
from infra.packed_attention import VARLEN
from infra.packing import plan_mini_batches
from infra.policy import Policy, old_log_probabilities
from references import slow_varlen_attn
from torch.autograd import grad

import toy
from ablations import surprise_proxy
from infra import head as head_module
from infra import packed_attention
from methods import row_proxy


def all_rows(policy, rollouts):
    return policy(rollouts.ids, rollouts.prompt_length, rollouts.response_length)


@pytest.fixture
def plan(batch):
    """Three mini-batches in small micro-batches. The third group has no advantage."""
    return plan_of(batch, budget=150)


def plan_of(batch, budget):
    advantages = torch.tensor([1.0, 0, -1, 0.5] * 6)
    advantages[8:12] = 0
    return plan_mini_batches(batch, advantages, 8, budget)


# ---- packed rows -----------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_policy_rows_match_single_unpadded_forward_passes(base, batch, temperature):
    model, _ = base
    with torch.no_grad():
        rows = all_rows(Policy(model, temperature), batch)
    assert rows.logprob.dtype == torch.float32

    start = 0
    for i in range(len(batch)):
        P, n = int(batch.prompt_length[i]), int(batch.response_length[i])
        ids = batch.ids[i : i + 1, : P + n]
        with torch.no_grad():
            out = model(ids, output_hidden_states=True)
        p = (out.logits[0].double() / temperature).softmax(-1)[P - 1 : P + n - 1]
        logprob = p.gather(1, ids[0, P:, None]).squeeze(1).log()
        entropy = -(p * p.log()).sum(1)
        hidden = out.hidden_states[-1][0, P - 1 : P + n - 1]

        mine = slice(start, start + n)
        torch.testing.assert_close(rows.logprob[mine].double(), logprob, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(rows.entropy[mine].double(), entropy, rtol=1e-4, atol=1e-5)
        mean_p = p.square().sum(1)
        torch.testing.assert_close(rows.mean_p[mine].double(), mean_p, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(rows.hidden[mine], hidden, rtol=1e-4, atol=1e-4)
        assert torch.equal(rows.token[mine], ids[0, P:])
        start += n
    assert start == len(rows.logprob)


def test_hidden_states_are_the_inputs_to_the_lm_head(base, batch):
    model, _ = base
    with torch.no_grad():
        rows = all_rows(Policy(model), batch)
        logp = model.lm_head(rows.hidden).log_softmax(-1)
    logprob = logp.gather(1, rows.token[:, None]).squeeze(1)
    torch.testing.assert_close(logprob, rows.logprob, rtol=1e-4, atol=1e-5)


def test_padding_never_affects_results(base, batch):
    """Different ids in the padding, or more padding, change no log-probability or gradient."""
    model, _ = base
    policy = Policy(model)
    more = torch.zeros(len(batch), 7, dtype=torch.long)
    padded = torch.cat([batch.ids, more], dim=1)
    end = batch.prompt_length + batch.response_length
    outside = torch.arange(padded.shape[1]) >= end[:, None]

    logprobs = []
    gradients = []
    for name in ("<pad>", "<eos>", "7"):
        ids = padded.masked_fill(outside, toy.TOKEN_ID[name])
        logprob = policy(ids, batch.prompt_length, batch.response_length).logprob
        logprobs.append(logprob.detach())
        gradients += grad(logprob.sum(), model.lm_head.weight)

    for logprob, gradient in zip(logprobs, gradients, strict=True):
        assert torch.equal(logprob, logprobs[0])
        assert torch.equal(gradient, gradients[0])
    unpadded = all_rows(policy, batch).logprob.detach()
    torch.testing.assert_close(unpadded, logprobs[0], rtol=1e-5, atol=1e-5)


def test_the_end_token_is_trained(base, batch):
    """A finished response's last row belongs to the end token, and that row has a gradient."""
    model, _ = base
    i = int((~batch.truncated).nonzero()[0])
    rows = Policy(model).rows(batch, torch.tensor([i]))
    assert len(rows.logprob) == batch.response_length[i]
    assert rows.token[-1] == toy.TOKEN_ID["<eos>"]
    (gradient,) = grad(rows.logprob[-1], model.lm_head.weight)
    assert gradient[toy.TOKEN_ID["<eos>"]].abs().sum() > 0


def test_rows_follow_the_order_of_the_selected_responses(base, batch):
    policy = Policy(base[0])
    index = torch.tensor([5, 2])
    with torch.no_grad():
        parts = all_rows(policy, batch).logprob.split(batch.response_length.tolist())
        some = policy.rows(batch, index)
    expected = torch.cat([parts[5], parts[2]])
    torch.testing.assert_close(some.logprob, expected, rtol=1e-4, atol=1e-5)


def test_rows_of_no_responses_are_empty_and_support_backward(base, batch):
    """A rank without responses makes the same forward and backward passes as the other ranks."""
    rows = Policy(base[0]).rows(batch, torch.tensor([], dtype=torch.long))
    assert len(rows.logprob) == len(rows.hidden) == len(rows.token) == 0
    (gradient,) = grad(rows.logprob.sum(), base[0].lm_head.weight)
    assert torch.equal(gradient, torch.zeros_like(gradient))


# ---- packed into one row ---------------------------------------------------------------------


def packed_policy(model, on_kernel, monkeypatch) -> Policy:
    """A policy that packs, with transformers' block mask or with the GPU code."""
    policy = Policy(copy.deepcopy(model))
    policy.pack(True)
    if on_kernel:
        monkeypatch.setattr(packed_attention, "varlen_attn", slow_varlen_attn)
        policy.lm.set_attn_implementation(VARLEN)
    return policy


@pytest.mark.parametrize("on_kernel", [False, True])
def test_packed_and_padded_micro_batches_agree(base, batch, on_kernel, monkeypatch):
    """Compares rows and gradients when responses of all lengths are packed into one row."""
    model, _ = base
    index = torch.tensor([5, 2, 11, 0, 7])
    padded = Policy(model)
    packed = packed_policy(model, on_kernel, monkeypatch)
    widths = []
    packed.lm.base_model.register_forward_pre_hook(
        lambda _, __, inputs: widths.append(inputs["input_ids"].shape), with_kwargs=True
    )

    for rows, expected in zip(packed.rows(batch, index), padded.rows(batch, index), strict=True):
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    total = int((batch.prompt_length + batch.response_length)[index].sum())
    assert widths == [(1, total)]

    upstream = torch.randn(len(packed.rows(batch, index).logprob))
    parameters = (list(policy.lm.parameters()) for policy in (packed, padded))
    gradients = [
        grad(policy.rows(batch, index).logprob, its_parameters, upstream)
        for policy, its_parameters in zip((packed, padded), parameters, strict=True)
    ]
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("on_kernel", [False, True])
def test_a_packed_micro_batch_may_hold_zero_or_one_responses(base, batch, on_kernel, monkeypatch):
    policy = packed_policy(base[0], on_kernel, monkeypatch)
    with torch.no_grad():
        assert len(policy.rows(batch, torch.tensor([], dtype=torch.long)).logprob) == 0
        alone = policy.rows(batch, torch.tensor([3])).logprob
        expected = Policy(base[0]).rows(batch, torch.tensor([3])).logprob
    torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-5)


def test_old_log_probabilities_match_for_packed_micro_batches(base, batch, monkeypatch):
    packed = packed_policy(base[0], True, monkeypatch)
    advantages = torch.tensor([1.0, 0, -1, 0.5] * 6)
    plan = plan_mini_batches(batch, advantages, 8, 150, layout=packed.layout)
    assert packed.layout.packed
    ours = old_log_probabilities(packed, batch, plan, row_proxy)
    padded = old_log_probabilities(Policy(base[0]), batch, plan_of(batch, 150), row_proxy)
    torch.testing.assert_close(ours.logprob, padded.logprob, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.entropy, padded.entropy, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.kept.values, padded.kept.values, rtol=1e-3, atol=1e-3)


# ---- log-probabilities in blocks -------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale, cap", [(1.0, None), (0.3, None), (1.0, 2.0), (1.7, 2.0)])
def test_token_logprobs_in_blocks_match_autograd_through_one_log_softmax(
    bias, scale, cap, monkeypatch
):
    """Values, means and all gradients match over four blocks, at a temperature other than 1."""
    V, T = 50, 0.7
    monkeypatch.setattr(head_module, "LOGIT_BLOCK_CPU", 20 * V)
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(70, 3, generator=g, requires_grad=True)
    weight = torch.randn(V, 3, generator=g, requires_grad=True)
    b = torch.randn(V, generator=g, requires_grad=True) if bias else None
    token = torch.randint(V, (70,), generator=g)
    upstream = torch.randn(70, generator=g)
    head = Head(weight, b, scale, cap, T)
    assert len(list(TokenLogprobs.blocks(hidden, head))) == 4

    logits = torch.nn.functional.linear(hidden, weight, b) * scale
    if cap:
        logits = torch.tanh(logits / cap) * cap
    logp = (logits / T).log_softmax(-1)
    logprob = logp.gather(1, token[:, None]).squeeze(1)
    inputs = [hidden, weight, b] if bias else [hidden, weight]
    wanted = grad(logprob, inputs, upstream)
    entropy = -(logp.exp() * logp).sum(1).detach()
    mean_p = sum(p**2 for p in logp.exp().detach().T)  # Σ_y p(y)², token by token

    ours, *no_means = token_logprobs(hidden, head, token, with_means=False)
    torch.testing.assert_close(ours, logprob)
    assert all(values.isnan().all() for values in no_means)
    for gradient, expected in zip(grad(ours, inputs, upstream), wanted, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    _, *means = token_logprobs(hidden, head, token, with_means=True)
    torch.testing.assert_close(means, [entropy, mean_p], rtol=1e-4, atol=1e-5)


def test_token_logprobs_entropy_of_a_certain_token_is_zero():
    """0 log 0 = 0: a probability that underflows gives no NaN."""
    hidden = torch.tensor([[1e4]])
    head = Head(torch.tensor([[1.0], [-1.0]]))
    logprob, entropy, mean_p = token_logprobs(hidden, head, torch.tensor([0]), with_means=True)
    assert logprob.item() == entropy.item() == 0
    assert mean_p.item() == 1


# ---- the sampler's head ---------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_float32_head_gives_the_logits_used_in_scoring(base, batch, bias):
    """Exact in bfloat16: for the same hidden states, Head and sampler give the same logits."""
    model = copy.deepcopy(base[0]).bfloat16()
    if bias:
        model.lm_head.bias = torch.nn.Parameter(torch.randn(model.config.vocab_size).bfloat16())
    plain = copy.deepcopy(model)
    give_float32_head(model)
    with torch.no_grad():
        hidden = model.base_model(batch.ids).last_hidden_state
        ours = model(batch.ids).logits
        rounded = plain(batch.ids).logits
    assert ours.dtype == torch.float32
    assert rounded.dtype == torch.bfloat16
    scored = Policy(plain).lm_head().logits(hidden.flatten(0, 1))
    assert torch.equal(ours.flatten(0, 1), scored)
    assert not torch.equal(ours, rounded.float())
    torch.testing.assert_close(ours, rounded.float(), rtol=0.02, atol=0.02)
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_bfloat16_product_is_accumulated_and_kept_in_float32():
    g = torch.Generator().manual_seed(0)
    a = torch.randn(5, 64, generator=g).bfloat16()
    b = torch.randn(64, 7, generator=g).bfloat16()
    expected = (a.double() @ b.double()).float()
    torch.testing.assert_close(product(a, b), expected, rtol=1e-5, atol=1e-5)


# ---- old log-probabilities -------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 150, 10_000])
def test_old_log_probabilities_are_in_packed_order_for_any_micro_batches(base, batch, budget):
    policy = Policy(base[0])
    with torch.no_grad():
        whole = all_rows(policy, batch)
    tokens = old_log_probabilities(policy, batch, plan_of(batch, budget), row_proxy)
    torch.testing.assert_close(tokens.logprob, whole.logprob, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tokens.entropy, whole.entropy, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tokens.mean_p, whole.mean_p, rtol=1e-4, atol=1e-5)
    assert torch.equal(tokens.token, whole.token)
    assert torch.equal(tokens.length, batch.response_length)

    v = -torch.expm1(whole.logprob)[:, None] * whole.hidden  # (1 - p) h
    torch.testing.assert_close(tokens.kept.values, v, rtol=1e-4, atol=1e-4)
    assert torch.equal(tokens.kept.mine, torch.arange(len(v)))
    assert len(tokens.kept) == len(v)


def test_old_log_probabilities_call_keep_once_per_micro_batch(base, batch, plan):
    seen = []

    def keep(rows, head):
        seen.append(rows.token)
        return rows.hidden

    old_log_probabilities(Policy(base[0]), batch, plan, keep)
    micro_batches = [index for mini_batch in plan for index in mini_batch.micro_batches]
    assert len(seen) == len(micro_batches) > len(plan)
    for tokens, index in zip(seen, micro_batches, strict=True):
        expected = torch.cat([batch.response_ids(i) for i in index.tolist()])
        assert torch.equal(tokens, expected)


def test_old_log_probabilities_without_keep_store_nothing(base, batch, plan):
    tokens = old_log_probabilities(Policy(base[0]), batch, plan)
    assert tokens.kept is None
    assert len(tokens.logprob) == batch.response_length.sum()


def test_old_log_probabilities_keep_float32_on_the_cpu(base, batch, plan):
    """`keep` receives float32 from a bfloat16 model, and its result is stored as float32."""
    handed = []

    def keep(rows, head):
        handed.append(rows.hidden.dtype)
        return rows.hidden.bfloat16()

    model = copy.deepcopy(base[0]).bfloat16()
    tokens = old_log_probabilities(Policy(model), batch, plan, keep)
    assert set(handed) == {torch.float32}
    assert tokens.kept.values.dtype == torch.float32


@pytest.mark.parametrize("asks", [True, False])
def test_old_log_probabilities_gather_the_head_once_and_only_on_request(base, batch, plan, asks):
    model, _ = base
    policy = Policy(model, temperature=0.7)
    gathered = []

    def counted():
        gathered.append(Policy.head(policy))
        return gathered[-1]

    def keep(rows, head):
        if asks:
            torch.testing.assert_close(head(), model.lm_head.weight / 0.7)
        return rows.hidden

    policy.head = counted
    old_log_probabilities(policy, batch, plan, keep)
    assert len(gathered) == asks


def test_surprise_is_kept_for_every_token_with_logits_in_blocks(base, batch, monkeypatch):
    """It equals (log p + H) h from one log-softmax, at a temperature other than 1."""
    monkeypatch.setattr(head_module, "LOGIT_BLOCK_CPU", 20 * base[0].config.vocab_size)
    policy = Policy(base[0], temperature=0.7)
    kept = old_log_probabilities(policy, batch, plan_of(batch, 150), surprise_proxy).kept.values
    with torch.no_grad():
        rows = policy.rows(batch, torch.arange(len(batch)))
        logp = (base[0].lm_head(rows.hidden) / 0.7).log_softmax(dim=1)
    s = logp.gather(1, rows.token[:, None]) - (logp.exp() * logp).sum(dim=1, keepdim=True)
    assert s.min() < 0 < s.max()
    torch.testing.assert_close(kept, s * rows.hidden, rtol=1e-3, atol=1e-4)


def test_old_log_probabilities_carry_no_gradient(base, batch, plan):
    tokens = old_log_probabilities(Policy(base[0]), batch, plan, row_proxy)
    assert not tokens.logprob.requires_grad
    assert not tokens.kept.values.requires_grad
