"""Tests infra/shared_prompts.py: what runs once for a group gives the results of whole sequences.

gemma3 has sliding windows of 8 tokens, shorter than a prompt with its response.
"""

import pytest
import torch
from models import VOCABULARY, random_ids, save_random_model
from torch.nn.utils.rnn import pad_sequence
from toy_runs import read_lines, small_config, train_steps

from infra import head as head_module
from infra import shared_prompts
from infra.loading import decoder_of
from infra.micro_batches import balanced_groups, blocks_of_prompts, tokens_of
from infra.ranks import full_tensor, start_ranks
from infra.shared_prompts import shares_prompts
from train import load_policy

PROMPTS = [random_ids(5), random_ids(11, seed=1), random_ids(1, seed=2)]
RESPONSES = [(0, 30), (1, 19), (0, 8), (2, 12), (1, 25), (1, 1), (2, 3)]  # (prompt, tokens)
MODELS = ["llama", "gemma3_text", "gemma4_text", "mixtral", "opt"]


@pytest.fixture(autouse=True)
def short_prompts_are_shared(monkeypatch):
    monkeypatch.setattr(shared_prompts, "SHORT", 3)
    monkeypatch.setattr(head_module, "LOGIT_BLOCK", 20 * VOCABULARY)


@pytest.fixture
def batch() -> tuple:
    """(ids [7, L], mask [7, L])."""
    rows = [(PROMPTS[i], random_ids(n, seed=9 + n)) for i, n in RESPONSES]
    ids = pad_sequence([torch.cat(row) for row in rows], batch_first=True)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, response) in zip(mask, rows, strict=True):
        row[len(prompt) : len(prompt) + len(response)] = True
    return ids, mask


def passes(policy, parameters: dict, batch: tuple) -> tuple:
    """(outputs of the pass at θ_old, outputs of an update's pass, gradients by name)."""
    for parameter in parameters.values():
        parameter.grad = None
    with torch.no_grad():
        old = policy(*batch)
    out = policy(*batch)
    upstream = torch.randn(len(out.logprob), generator=torch.Generator().manual_seed(0))
    (out.logprob * upstream).sum().backward()
    return old, out, {key: full_tensor(p.grad).clone() for key, p in parameters.items()}


def tokens_run(policy, batch: tuple) -> list[int]:
    """The tokens of each call of the model's decoder, with padding."""
    found = []
    hook = decoder_of(policy.lm).register_forward_pre_hook(
        lambda _, __, inputs: found.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    with torch.no_grad():
        policy(*batch)
    hook.remove()
    return found


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_log_p_entropy_states_and_gradients_are_those_of_whole_sequences(
    name, recompute, batch, tmp_path, monkeypatch
):
    start_ranks()
    save_random_model(name, tmp_path)
    policy, _ = load_policy(tmp_path, temperature=0.7, recompute=recompute)
    parameters = dict(policy.lm.named_parameters())  # sharded, as the optimizer has them
    old, out, gradients = passes(policy, parameters, batch)
    assert torch.equal(old.logprob, out.logprob)  # r = 1 in the first update
    assert tokens_run(policy, batch) == [3 * 10, 7 * 30]

    monkeypatch.setattr(shared_prompts, "SHORT", 99)
    whole, _, expected = passes(policy, parameters, batch)
    assert tokens_run(policy, batch) == [7 * 36]
    for each in ("logprob", "entropy", "hidden"):
        ours, wanted = getattr(old, each), getattr(whole, each)
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5, msg=each)
    largest = max(gradient.norm() for gradient in expected.values())
    for key, wanted in expected.items():
        # The bias of opt's keys adds the same to all scores of a query: its gradient is rounding.
        is_zero = key.endswith("k_proj.bias")
        assert (gradients[key] - wanted).norm() < 1e-5 * (largest if is_zero else wanted.norm()), (
            key
        )


def test_a_key_s_bias_has_no_gradient_without_rotary_positions(batch, tmp_path):
    """In opt, this gradient is only rounding, and differs by its own size between two batchings."""
    start_ranks()
    save_random_model("opt", tmp_path)
    policy, _ = load_policy(tmp_path)
    parameters = dict(policy.lm.named_parameters())
    _, _, gradients = passes(policy, parameters, batch)
    of_bias = [key for key in gradients if key.endswith("k_proj.bias")]
    assert len(of_bias) == 2
    for key in of_bias:
        other = gradients[key.replace("k_proj", "q_proj")]
        assert gradients[key].norm() < 1e-5 * other.norm()


@pytest.mark.parametrize("name", ["qwen3_next", "jamba", "mamba"])
def test_recurrent_layers_run_whole_sequences(name, batch, tmp_path):
    start_ranks()
    save_random_model(name, tmp_path)
    policy, _ = load_policy(tmp_path)
    assert not shares_prompts(policy.lm)
    assert tokens_run(policy, batch) == [7 * 36]


def test_several_ranks_run_whole_sequences(base, monkeypatch):
    assert shares_prompts(base[0])
    monkeypatch.setattr(shared_prompts, "rank_and_world", lambda: (0, 2))
    assert not shares_prompts(base[0])


def test_steps_with_shared_prompts_are_those_of_whole_sequences(tmp_path, monkeypatch):
    """SHORT decides whether 13-token prompts are shared. AdamW turns rounding into a small step."""
    found = []
    for short in (5, 32):
        monkeypatch.setattr(shared_prompts, "SHORT", short)
        train_steps(small_config(tmp_path / str(short), "--lr", "3e-6", steps=2))
        found.append(read_lines(tmp_path / str(short) / "metrics.jsonl"))
    shared, whole = found
    assert shared != whole  # in the last digits
    for ours, wanted in zip(shared, whole, strict=True):
        # mismatch is rounding alone, and the correlations are computed from 1 - p near 0.
        for name in ours.keys() - {"mismatch", "lambda_corr_pos", "lambda_corr_neg"}:
            assert ours[name] == pytest.approx(wanted[name], rel=1e-5, abs=1e-6), name
        assert ours["mismatch"] < 1e-6


# ---- which responses run together ----------------------------------------------------------------

IDS = [[5] * 10, [6] * 10, [7] * 3]  # the last is not shared
OF_RESPONSE = [IDS[i] for i in (0, 0, 0, 0, 1, 1, 1, 1, 2, 2)]
LENGTHS = [8, 7, 8, 6, 30, 9, 28, 8, 5, 4]


def blocks(budget: int, share: bool = True) -> list:
    return blocks_of_prompts(list(range(10)), OF_RESPONSE, LENGTHS, budget, share)


def test_a_group_stays_together_unless_padding_costs_more_than_its_prompt():
    assert blocks(1000) == [
        ([0, 2, 1, 3], 8, 10),
        ([4, 6], 30, 10),
        ([5, 7], 9, 10),
        ([8], 8, 0),
        ([9], 7, 0),
    ]


def test_a_block_exceeds_the_budget_only_as_a_single_response():
    found = blocks(26)
    assert sorted(i for block in found for i in block.index) == list(range(10))
    for block in found:
        assert tokens_of([block]) <= 26 or len(block.index) == 1
    assert max(len(block.index) for block in found) == 2  # 10 + 2 * 8 tokens


def test_whole_sequences_are_blocks_of_one():
    assert blocks(1000, share=False) == [
        ([i], len(prompt) + n, 0)
        for i, (prompt, n) in enumerate(zip(OF_RESPONSE, LENGTHS, strict=True))
    ]


def test_groups_of_blocks_count_each_prompt_once():
    """Block one has 10 + 4 x 8 tokens, block three 10 + 2 x 9. Together they have 20 + 6 x 9."""
    of_eights = blocks(1000)
    together = [of_eights[0], of_eights[2]]
    assert tokens_of(together) == 74
    assert balanced_groups(together, 74) == [[5, 7, 0, 2, 1, 3]]
    assert sorted(balanced_groups(together, 73)) == [[0, 2, 1, 3], [5, 7]]


def test_many_responses_with_a_prompt_of_their_own_micro_batch_are_cut_without_recursion():
    n = 3000
    found = blocks_of_prompts(list(range(n)), n * [[5] * 40], n * [9], 30, True)
    assert [block.index for block in found] == [[i] for i in range(n)]
