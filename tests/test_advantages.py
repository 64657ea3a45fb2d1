"""Other papers' advantages: ρ A is the cited paper's advantage, up to a scale per group."""

from types import SimpleNamespace

import pytest
import torch
from references import token_batch, token_rows

import ablations
import train
from grpo import group_advantages
from infra.errors import UserError
from infra.rows import Rows
from methods import METHODS, logit_energy

LENGTHS = [4, 9, 2, 6, 5, 5, 1, 7]  # tokens per response, in two groups of 4
REWARDS = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def graded_tokens(rewards=REWARDS, seed=0):
    """Tokens with the group advantages of these rewards, and energies between 0 and 2."""
    N = sum(LENGTHS)
    energy = 2 * torch.rand(N, 1, generator=torch.Generator().manual_seed(seed))
    advantage = group_advantages(torch.tensor(rewards), 4)
    return token_batch(
        LENGTHS,
        advantage=advantage.repeat_interleave(torch.tensor(LENGTHS)),
        kept=Rows(energy, torch.arange(N), N),
    )


def weights(name, tokens, *flags):
    cfg = train.parse_config(["--method", name, "--group-size", "4", *flags])
    return METHODS[name].weights(tokens, cfg)


def assert_proportional(ours, expected, groups_apart):
    """Proportional with one factor for the batch, or one factor for each of the two groups."""
    first = sum(LENGTHS[:4])
    parts = [slice(0, first), slice(first, None)] if groups_apart else [slice(None)]
    for part in parts:
        a, b = ours[part].double(), torch.tensor(expected[part], dtype=torch.float64)
        factor = (a * b).sum() / b.square().sum()
        assert factor > 0
        torch.testing.assert_close(a, factor * b, rtol=1e-4, atol=1e-5)


def test_w_reinforce_gives_w_to_correct_and_minus_one_to_wrong_responses():
    tokens = graded_tokens()
    expected = []
    for length, reward in zip(LENGTHS, REWARDS, strict=True):
        expected += [0.1 if reward else -1.0] * length
    assert_proportional(weights("w_reinforce", tokens) * tokens.advantage, expected, False)

    expected = [0.4 if x > 0 else x for x in expected]
    ours = weights("w_reinforce", tokens, "--right-weight", "0.4") * tokens.advantage
    assert_proportional(ours, expected, False)


def test_opo_subtracts_the_mean_reward_weighted_by_length():
    tokens = graded_tokens()
    expected = []
    for g in (0, 4):
        lengths, rewards = LENGTHS[g : g + 4], REWARDS[g : g + 4]
        pairs = list(zip(lengths, rewards, strict=True))
        baseline = sum(n * r for n, r in pairs) / sum(lengths)
        for n, r in pairs:
            expected += [r - baseline] * n
    assert_proportional(weights("opo", tokens) * tokens.advantage, expected, True)


def test_otb_subtracts_the_mean_reward_weighted_by_energy_so_far():
    tokens = graded_tokens()
    energy = [x.flatten().tolist() for x in tokens.kept.values.split(LENGTHS)]
    expected = []
    for i, (length, reward) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
        group = range(i // 4 * 4, i // 4 * 4 + 4)
        for t in range(length):
            W = {j: sum(energy[j][: t + 1]) for j in group if LENGTHS[j] > t}
            expected.append(reward - sum(W[j] * REWARDS[j] for j in W) / sum(W.values()))
    ours = weights("otb", tokens) * tokens.advantage
    assert_proportional(ours, expected, True)
    alone = slice(4 + 6, 4 + 9)  # the second response continues after the others have ended
    assert torch.all(ours[alone] == 0)


def test_otb_refuses_rows_kept_for_another_method():
    tokens = graded_tokens()
    tokens.kept = token_batch(LENGTHS).kept
    with pytest.raises(ValueError, match="otb needs one number per token"):
        weights("otb", tokens)


def test_otb_equals_dapo_while_all_tokens_are_certain():
    """Certain tokens have no gradient; nothing is divided by 0."""
    tokens = graded_tokens()
    tokens.kept.values.zero_()
    torch.testing.assert_close(weights("otb", tokens), torch.ones(sum(LENGTHS)))


@pytest.mark.parametrize("name", ["w_reinforce", "opo", "otb"])
def test_a_group_of_equal_rewards_does_not_affect_the_scale(name):
    rewards = [*REWARDS[:4], 0.0, 0.0, 0.0, 0.0]
    tokens = graded_tokens(rewards)
    rho = weights(name, tokens)
    sides = tokens.advantage != 0
    assert torch.all(rho[~sides] == 1)
    assert rho[sides].mean() == pytest.approx(1)
    assert torch.all(weights(name, graded_tokens([1.0] * 8)) == 1)


@pytest.mark.parametrize("seed", range(3))
def test_logit_energy_is_the_squared_norm_of_the_logit_gradient(seed, monkeypatch):
    monkeypatch.setattr("methods.LOGITS_PER_BLOCK", 20)  # two rows per block
    g = torch.Generator().manual_seed(seed)
    W, h = torch.randn(9, 4, generator=g), torch.randn(5, 4, generator=g)
    y = torch.tensor([0, 3, 8, 3, 1])
    z = (h @ W.T).requires_grad_()
    logprob = z.log_softmax(dim=1).gather(1, y[:, None]).squeeze(1)
    (gradient,) = torch.autograd.grad(logprob.sum(), z)
    ours = logit_energy(token_rows(h, y, logprob.detach()), lambda: W)
    torch.testing.assert_close(ours, gradient.square().sum(dim=1, keepdim=True))

    p = logprob.detach().exp()  # the paper's formula
    known = 1 - 2 * p + z.detach().softmax(dim=1).square().sum(dim=1)
    torch.testing.assert_close(ours.flatten(), known)


@pytest.mark.parametrize("is_matrix", [True, False])
def test_otb_needs_a_matrix_head(is_matrix):
    lm = SimpleNamespace(config=SimpleNamespace(vocab_size=9, hidden_size=4))
    policy = SimpleNamespace(lm=lm, lm_head=lambda: SimpleNamespace(is_matrix=is_matrix))
    flags = ablations.AblationFlags(method="otb")
    if is_matrix:
        ablations.check_model(flags, policy)
        return
    with pytest.raises(UserError, match="--method otb assumes .* W h.*--method opo"):
        ablations.check_model(flags, policy)
