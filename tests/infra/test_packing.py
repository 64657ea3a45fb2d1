"""infra/packing.py: padded responses, packed tokens, and each rank's mini-batches."""

import numpy as np
import pytest
import torch

from infra.balance import PADDED, Layout
from infra.packing import (
    Rollouts,
    TokenBatch,
    join,
    packed_rows,
    padded_rollouts,
    plan_mini_batches,
)
from infra.rows import Rows

CPU = torch.device("cpu")
END = 1
PROMPTS = [[5, 6, 7], [8], [9, 10]]
RESPONSES = [[20, 21, END], [22, 23, 24, 25], [END]]


@pytest.fixture
def rollouts():
    logprobs = [np.arange(len(response), dtype=np.float32) for response in RESPONSES]
    return padded_rollouts(PROMPTS, RESPONSES, ["a", "b", "c"], [END, 2], CPU, logprobs)


def rollouts_of(lengths, prompt_length=4):
    """Rollouts with responses of these lengths."""
    prompts = [[5] * prompt_length for _ in lengths]
    responses = [[6] * length for length in lengths]
    return padded_rollouts(prompts, responses, [""] * len(lengths), [END], CPU)


# ---- responses --------------------------------------------------------------------------------


def test_pack_puts_prompt_and_response_side_by_side_from_column_0(rollouts):
    assert len(rollouts) == 3
    assert rollouts.ids.shape == (3, 6)
    for i, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        sequence = prompt + response
        assert rollouts.ids[i, : len(sequence)].tolist() == sequence
        assert rollouts.response_ids(i).tolist() == response
    assert rollouts.prompt_length.tolist() == [3, 1, 2]
    assert rollouts.response_length.tolist() == [3, 4, 1]
    assert rollouts.truncated.tolist() == [False, True, False]


def test_pack_recognises_every_end_token():
    responses = [[4, 2], [4, 1], [4, 3]]
    rollouts = padded_rollouts([[5]] * 3, responses, [""] * 3, [1, 2], CPU)
    assert rollouts.truncated.tolist() == [False, False, True]


def same(a: Rollouts, b: Rollouts) -> bool:
    return (
        [a.response_ids(i).tolist() for i in range(len(a))]
        == [b.response_ids(i).tolist() for i in range(len(b))]
        and a.prompt_length.tolist() == b.prompt_length.tolist()
        and a.truncated.tolist() == b.truncated.tolist()
        and a.texts == b.texts
        and [len(x) for x in a.logprobs] == [len(x) for x in b.logprobs]
    )


def test_pick_takes_responses_in_the_requested_order(rollouts):
    picked = rollouts.pick([2, 0])
    wanted = padded_rollouts(
        [PROMPTS[2], PROMPTS[0]], [RESPONSES[2], RESPONSES[0]], ["c", "a"], [END], CPU
    )
    assert same(picked, wanted)
    assert [x.tolist() for x in picked.logprobs] == [[0], [0, 1, 2]]
    assert all(x.isnan().all() for x in wanted.logprobs)  # a sampler without log-probabilities


def test_join_undoes_pick_for_any_widths(rollouts):
    narrow = padded_rollouts([[5, 6]], [[7, END]], ["d"], [END], CPU)
    both = join([narrow, rollouts])
    assert same(both.pick([0]), narrow)
    assert same(both.pick([1, 2, 3]), rollouts)
    assert both.ids[0, :2].tolist() == [5, 6]
    assert same(join([rollouts.pick([0]), rollouts.pick([1, 2])]), rollouts)


# ---- packed tokens ----------------------------------------------------------------------------


def test_packed_rows_index_the_response_tokens():
    length = torch.tensor([2, 3, 1])
    assert packed_rows(torch.tensor([2, 0]), length).tolist() == [5, 0, 1]
    assert packed_rows(torch.tensor([1]), length).tolist() == [2, 3, 4]
    assert packed_rows(torch.arange(3), length).tolist() == list(range(6))
    assert packed_rows(torch.arange(0), length).tolist() == []


def test_token_batch_completed_gives_each_token_its_responses_advantage():
    scored = TokenBatch(
        logprob=-torch.arange(6.0),
        entropy=torch.arange(6.0),
        mean_p=torch.arange(6.0) + 40,
        token=torch.arange(6),
        length=torch.tensor([2, 3, 1]),
        sampler_logprob=torch.arange(6.0) + 30,
    )
    tokens = scored.completed(torch.tensor([0.5, -1, 0]), problems=[{}, {}, {}], memory={"a": 1})
    assert tokens.advantage.tolist() == [0.5, 0.5, -1, -1, -1, 0]
    assert tokens.current is tokens.logprob is scored.logprob
    assert tokens.sampler_logprob is scored.sampler_logprob
    assert tokens.problems == [{}, {}, {}]
    assert tokens.memory == {"a": 1}


def test_token_batch_part_holds_the_tokens_of_its_responses():
    length = torch.tensor([2, 3, 1])
    batch = TokenBatch(
        logprob=torch.arange(6.0),
        entropy=torch.arange(6.0) + 10,
        mean_p=torch.arange(6.0) + 40,
        token=torch.arange(6) + 20,
        length=length,
        sampler_logprob=torch.arange(6.0) + 30,
        advantage=torch.tensor([1.0, 1, -1, -1, -1, 0]),
        problems=[{"answer": "a"}, {"answer": "b"}, {"answer": "c"}],
        memory={"kept": 1},
        kept=Rows(torch.zeros(6, 2), torch.arange(6), 6),
    )
    current = torch.full((3,), 0.5)
    part = batch.part(torch.tensor([2, 0]), current)
    assert part.logprob.tolist() == [5, 0, 1]
    assert part.entropy.tolist() == [15, 10, 11]
    assert part.mean_p.tolist() == [45, 40, 41]
    assert part.token.tolist() == [25, 20, 21]
    assert part.length.tolist() == [1, 2]
    assert part.sampler_logprob.tolist() == [35, 30, 31]
    assert part.advantage.tolist() == [0, 1, 1]
    assert part.current is current
    assert part.problems == [{"answer": "c"}, {"answer": "a"}]
    assert part.memory is batch.memory
    assert part.kept is None


# ---- micro-batches ----------------------------------------------------------------------------


LENGTHS = [30, 5, 18, 18, 7, 44, 3, 12, 26, 9, 31, 15]
ADVANTAGES = torch.tensor([1.0, -1, 0, 0, 2, 0, 0.5, -0.5, 0, 0, 0, 0])


@pytest.mark.parametrize("layout", [PADDED, Layout(packed=True, equal_at=30.0)])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_plan_mini_batches_covers_each_mini_batch_once_across_ranks(world, layout):
    rollouts = rollouts_of(LENGTHS)
    plans = [
        plan_mini_batches(rollouts, ADVANTAGES, 4, 100, rank, world, layout)
        for rank in range(world)
    ]
    for number, sum_over_ranks in enumerate(zip(*plans, strict=True)):
        responses = range(4 * number, 4 * number + 4)
        trained = [i for plan in sum_over_ranks for group in plan.trained for i in group.tolist()]
        silent = [i for plan in sum_over_ranks for group in plan.silent for i in group.tolist()]
        assert sorted(trained) == [i for i in responses if ADVANTAGES[i] != 0]
        assert sorted(silent) == [i for i in responses if ADVANTAGES[i] == 0]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_plan_mini_batches_ranks_take_equal_numbers_of_steps_within_the_budget(world):
    rollouts = rollouts_of(LENGTHS)
    length = rollouts.prompt_length + rollouts.response_length
    plans = [plan_mini_batches(rollouts, ADVANTAGES, 6, 60, rank, world) for rank in range(world)]
    for sum_over_ranks in zip(*plans, strict=True):
        assert len({len(plan.trained) for plan in sum_over_ranks}) == 1
        assert len({len(plan.silent) for plan in sum_over_ranks}) == 1
        for plan in sum_over_ranks:
            assert len(plan.micro_batches) == len(plan.trained) + len(plan.silent)
            for group in plan.micro_batches:
                assert len(group) < 2 or int(length[group].max()) * len(group) <= 60


def test_plan_mini_batches_counts_the_response_tokens_of_all_ranks():
    rollouts = rollouts_of(LENGTHS)
    for rank in (0, 1):
        plan = plan_mini_batches(rollouts, ADVANTAGES, 5, 100, rank, 2)
        tokens = [mini_batch.token_count for mini_batch in plan]
        assert tokens == [sum(LENGTHS[:5]), sum(LENGTHS[5:10]), sum(LENGTHS[10:])]


def test_plan_mini_batches_without_any_advantage_trains_nothing():
    rollouts = rollouts_of(LENGTHS)
    for mini_batch in plan_mini_batches(rollouts, torch.zeros(12), 4, 100):
        assert mini_batch.trained == []
        assert sum(len(group) for group in mini_batch.silent) == 4
