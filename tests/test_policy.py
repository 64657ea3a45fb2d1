"""policy.py: packed rows against one unpadded full forward per response, micro-batches and scoring."""
import pytest
import torch

import toy
from data import micro_batches, packed_rows, plan_micro_batches
from policy import Policy, TokenLogprobs, score


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_policy_rows_match_single_unpadded_forwards(base, batch, temperature):
    model, _ = base
    with torch.no_grad():
        rows = Policy(model, temperature)(batch.ids, batch.prompt_length, batch.response_length)
        at = 0
        for i in range(len(batch.texts)):
            P, n = int(batch.prompt_length[i]), int(batch.response_length[i])
            ids = batch.ids[i:i + 1, :P + n]
            out = model(ids, output_hidden_states=True)
            p = (out.logits[0].double() / temperature).softmax(-1)[P - 1:P + n - 1]
            torch.testing.assert_close(rows.logprob[at:at + n].double(), p.gather(1, ids[0, P:, None]).squeeze(1).log(),
                                       rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(rows.entropy[at:at + n].double(), -(p * p.log()).sum(1), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(rows.hidden[at:at + n], out.hidden_states[-1][0, P - 1:P + n - 1], rtol=1e-4, atol=1e-4)
            at += n
        assert at == len(rows.logprob) and rows.logprob.dtype == torch.float32


def test_hidden_states_are_those_that_enter_the_lm_head(base, batch):
    model, _ = base
    with torch.no_grad():
        rows = Policy(model)(batch.ids, batch.prompt_length, batch.response_length)
        tokens = torch.cat([batch.response_ids(i) for i in range(len(batch.texts))])
        logprob = model.lm_head(rows.hidden).log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
    torch.testing.assert_close(logprob, rows.logprob, rtol=1e-4, atol=1e-5)


def test_token_logprobs_in_blocks_match_autograd_through_one_log_softmax():
    """70 tokens at a vocabulary of 2^20 are two blocks; values, entropies and both gradients, at a temperature that is not 1."""
    g, V, T = torch.Generator().manual_seed(0), 2**20, 0.7
    hidden, head, upstream = torch.randn(70, 3, generator=g), torch.randn(V, 3, generator=g), torch.randn(70, generator=g)
    token = torch.randint(V, (70,), generator=g)
    assert len(list(TokenLogprobs.blocks(hidden, head, T))) == 2
    h, W = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    full = (h @ W.T / T).log_softmax(-1)
    logprob = full.gather(1, token[:, None]).squeeze(1)
    wanted = torch.autograd.grad(logprob, (h, W), upstream)
    entropy = -(full.detach().exp() * full.detach()).sum(1)
    h, W = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    ours, no_entropy = TokenLogprobs.apply(h, W, token, T, False)
    torch.testing.assert_close(ours, logprob)
    for a, b in zip(torch.autograd.grad(ours, (h, W), upstream), wanted):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(TokenLogprobs.apply(hidden, head, token, T, True)[1], entropy, rtol=1e-4, atol=1e-5)
    assert no_entropy.isnan().all()


def test_padding_never_changes_a_number(base, batch):
    """Other ids in the padding, and more of it, leave log-probabilities and gradients as they are."""
    model, _ = base
    policy, results = Policy(model), []
    padded = torch.cat([batch.ids, torch.zeros(len(batch.ids), 7, dtype=torch.long)], dim=1)
    columns = torch.arange(padded.shape[1])
    outside = columns >= (batch.prompt_length + batch.response_length)[:, None]
    for fill in (toy.TOKEN_ID["<pad>"], toy.TOKEN_ID["<eos>"], toy.TOKEN_ID["7"]):
        rows = policy(padded.masked_fill(outside, fill), batch.prompt_length, batch.response_length)
        results.append((rows.logprob.detach(), torch.autograd.grad(rows.logprob.sum(), model.lm_head.weight)[0]))
    for logprob, gradient in results[1:]:
        assert torch.equal(logprob, results[0][0]) and torch.equal(gradient, results[0][1])
    torch.testing.assert_close(policy(batch.ids, batch.prompt_length, batch.response_length).logprob.detach(), results[0][0],
                               rtol=1e-5, atol=1e-5)


def test_the_end_token_is_trained(base, batch):
    """The last row of a finished response is its end token's log-probability, and it carries gradient."""
    model, _ = base
    i = int((~batch.truncated).nonzero()[0])
    rows = Policy(model).rows(batch, torch.tensor([i]))
    assert len(rows.logprob) == batch.response_length[i] and batch.response_ids(i)[-1] == toy.TOKEN_ID["<eos>"]
    gradient, = torch.autograd.grad(rows.logprob[-1], model.lm_head.weight)
    assert gradient[toy.TOKEN_ID["<eos>"]].abs().sum() > 0


def test_micro_batches_cover_all_rows_within_the_budget():
    length = torch.tensor([5, 40, 7, 7, 90, 12, 1])
    groups = micro_batches(length, 45)
    assert sorted(torch.cat(groups).tolist()) == list(range(7))
    assert all(len(g) == 1 or int(length[g].max()) * len(g) <= 45 for g in groups)
    assert [4] in [g.tolist() for g in groups] and len(groups) <= 4


def test_packed_rows_point_at_the_response():
    assert packed_rows(torch.tensor([2, 0]), torch.tensor([2, 3, 1])).tolist() == [5, 0, 1]


def test_score_is_in_packed_order_whatever_the_micro_batches(base, batch):
    advantages = torch.tensor([1.0, 0, -1, 0.5] * 6)
    advantages[8:12] = 0
    policy = Policy(base[0])
    with torch.no_grad():
        whole = policy(batch.ids, batch.prompt_length, batch.response_length)
    for budget in (1, 150, 10_000):
        tokens = score(policy, batch, advantages, plan_micro_batches(batch.prompt_length + batch.response_length, advantages, 8, budget))
        torch.testing.assert_close(tokens.logprob, whole.logprob, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tokens.hidden, whole.hidden, rtol=1e-4, atol=1e-4)
        assert torch.equal(tokens.advantage, advantages.repeat_interleave(batch.response_length))


def test_plan_separates_what_needs_no_backward_pass(batch):
    advantages = torch.tensor([1.0, 0, -1, 0.5] * 6)
    advantages[8:12] = 0
    for mini_batch, start in zip(plan_micro_batches(batch.prompt_length + batch.response_length, advantages, 8, 200), (0, 8, 16)):
        assert sorted(torch.cat([index for index, _ in mini_batch]).tolist()) == list(range(start, start + 8))
        for index, has_advantage in mini_batch:
            assert torch.all((advantages[index] != 0) == has_advantage)
