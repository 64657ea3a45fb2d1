"""infra/balance.py: dividing responses into micro-batches and among ranks."""

import itertools

import pytest
import torch

from infra.balance import PADDED, Layout, deal

PACKED = Layout(packed=True)


def dealt(lengths: list[int], budget: int, world: int, layout=PADDED) -> list[list[list[int]]]:
    """Each rank's micro-batches, as lists of responses."""
    length = torch.tensor(lengths)
    index = torch.arange(len(lengths))
    ranks = []
    for rank in range(world):
        micro_batches = deal(index, length, budget, rank, world, layout)
        ranks.append([group.tolist() for group in micro_batches])
    return ranks


def random_lengths(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 100, (count,), generator=generator).tolist()


# ---- cost of a micro-batch -----------------------------------------------------------------------


def test_cost_matches_a_hand_calculation():
    assert PADDED.cost([]) == PACKED.cost([]) == 0
    assert PADDED.cost([10, 4]) == 20
    assert PACKED.cost([10, 4]) == 14
    assert Layout(packed=True, equal_at=5).cost([10, 4]) == pytest.approx(14 + 100 / 5 + 16 / 5)
    assert Layout(equal_at=5).cost([10, 4]) == pytest.approx(20 + 200 / 5)


# ---- groups --------------------------------------------------------------------------------------


def test_one_rank_pads_responses_of_similar_length_together():
    assert dealt([5, 40, 7], 45, 1) == [[[1], [2, 0]]]


def test_nothing_is_padded_to_more_than_twice_its_length():
    assert dealt([50, 25, 24, 12, 11], 1000, 1) == [[[0, 1], [2, 3], [4]]]


def test_one_rank_packs_responses_that_fit_together():
    assert dealt([10, 40, 7, 30], 50, 1) == [[[1], [3], [0, 2]]]
    assert dealt([10, 40, 7, 30], 50, 1, PACKED) == [[[1, 2], [3, 0]]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("layout", [PADDED, PACKED, Layout(True, 20.0), Layout(False, 20.0)])
def test_deal_covers_all_responses_within_the_budget_in_equal_steps(layout, world, seed):
    lengths = [*random_lengths(40, seed), 250]
    ranks = dealt(lengths, 200, world, layout)
    assert len({len(micro_batches) for micro_batches in ranks}) == 1
    groups = list(itertools.chain(*ranks))
    assert sorted(itertools.chain(*groups)) == list(range(41))
    for group in groups:
        of_group = [lengths[i] for i in group]
        tokens = sum(of_group) if layout.packed else max(of_group, default=0) * len(group)
        assert tokens <= 200 or len(group) == 1
    assert [40] in groups  # longer than the budget: a separate micro-batch


@pytest.mark.parametrize("world", [1, 2, 4])
def test_packing_takes_no_more_steps_than_padding(world):
    for seed in range(5):
        lengths = random_lengths(60, seed)
        padded = dealt(lengths, 200, world)
        packed = dealt(lengths, 200, world, PACKED)
        assert len(packed[0]) <= len(padded[0])
        assert len(packed[0]) * world * 200 >= sum(lengths)


# ---- ranks ---------------------------------------------------------------------------------------


def slowest(lengths: list[int], ranks: list[list[list[int]]], layout: Layout) -> float:
    """The total cost when every step waits for its slowest rank."""
    total = 0.0
    for step in zip(*ranks, strict=True):
        total += max(layout.cost([lengths[i] for i in group]) for group in step)
    return total


@pytest.mark.parametrize("equal_at", [float("inf"), 40.0])
def test_ranks_in_lockstep_waste_little(equal_at):
    """Packed: at most 10 % more than an equal division of the work.

    Padded: on average at most 1 % worse than dealing by count.
    """
    world = 4
    ratios = []
    for seed in range(40):
        lengths = random_lengths(120, seed)
        packed = Layout(True, equal_at)
        least = packed.cost(lengths) / world
        assert slowest(lengths, dealt(lengths, 400, world, packed), packed) <= 1.1 * least

        padded = Layout(False, equal_at)
        ours = slowest(lengths, dealt(lengths, 400, world, padded), padded)
        order = sorted(range(120), key=lengths.__getitem__, reverse=True)
        by_count = []
        for rank in range(world):
            mine = order[rank::world]
            groups = dealt([lengths[i] for i in mine], 400, 1, padded)[0]
            by_count.append([[mine[i] for i in group] for group in groups])
        steps = max(map(len, by_count))
        by_count = [groups + [[]] * (steps - len(groups)) for groups in by_count]
        ratios.append(ours / slowest(lengths, by_count, padded))
    assert sum(ratios) / len(ratios) <= 1.01


def test_the_cost_includes_the_square_of_the_length():
    """With squares included, 10 tokens cost about as much as 6, 5, 4 and 1 together."""
    lengths = [10, 6, 5, 4, 1]
    square = dealt(lengths, 100, 2, Layout(packed=True, equal_at=1.0))
    assert sorted(square) == [[[0]], [[1, 2, 3, 4]]]
    tokens = dealt(lengths, 100, 2, PACKED)
    assert sorted(tokens) == [[[0, 3]], [[1, 2, 4]]]


def test_deal_pads_with_empty_micro_batches():
    length = torch.tensor([10, 50, 20])
    index = torch.tensor([2])
    for layout in (PADDED, PACKED):
        assert [group.tolist() for group in deal(index, length, 60, 0, 2, layout)] == [[2]]
        assert [group.tolist() for group in deal(index, length, 60, 1, 2, layout)] == [[]]
        assert deal(index[:0], length, 60, 0, 2, layout) == []
