"""Mutations of notebook 2: the centroids and the angle between them."""

from mutations import Mutation

MUTATIONS = [
    # a centroid is a least-squares fit
    Mutation(
        old="weight = A.clamp(min=0).double()",
        new="weight = (A > 0).double()",  # advantages omitted
        breaks="assert difference < 1e-4",
    ),
    Mutation(
        old="mass_pos * step.square().sum()",
        new="step.square().sum()",  # mass omitted
        breaks="assert worst < 1e-4",
    ),
    # the blackboard
    Mutation(
        old="(board.p[:, None] * (torch.eye(3) - board.p))",
        new="(torch.eye(3) - board.p)",  # all words alike
        breaks="assert mean.abs().max() < 1e-6",
    ),
    Mutation(
        old="side_centroids(board.v, board.A)",
        new="side_centroids(board.v, -board.A)",  # sides swapped
        breaks="assert torch.allclose(board_pos, ",
    ),
    Mutation(
        old="side_centroids(board.v, board.A)",
        new="side_centroids(board.v, board.A * torch.tensor([1, 1, 2, 1]))",  # other frequencies
        breaks="assert torch.allclose(board_neg, -board_pos)",
    ),
    Mutation(
        old="(1 - board.p[board.token])[:, None]",
        new="board.p[board.token][:, None]",
        breaks="assert torch.allclose(torch.cat([row_pos",
    ),
    # E[∇ log π] = 0
    Mutation(
        old="logits[0, -1].log_softmax(0)[y]",
        new="logits[0, -1][y]",  # without its normaliser
        breaks="assert left < 1e-3",
    ),
    # angle versus batch size
    Mutation(
        old="neg = (-advantages).clamp(min=0) @ S  # M₋μ₋",
        new="neg = advantages.clamp(max=0) @ S",  # sign lost
        breaks="assert one_full[-1] < one_full[0] - 0.2",
    ),
    Mutation(
        old="by_size(S, advantages, sizes_many)",
        new="by_size(S.abs(), advantages, sizes_many)",  # no mean is 0
        breaks="assert many[name][0] < 0",
    ),
    Mutation(
        old="summed(token_gradient_proxy(rows.hidden, rows.logprob), length)",
        new="summed(top_k_hidden_gradient(rows, head, k=30), length)",  # depends on the word
        breaks='assert min(many["row"]',
    ),
    Mutation(
        old="summed(top_k_hidden_gradient(rows, head, k=5), length)",
        new="summed(top_k_hidden_gradient(rows, head, k=20), length)",
        breaks='assert many["top-5"][-1]',
    ),
    # the control
    Mutation(
        old="by_size(S, permuted(advantages, GROUP, seed), [16])",
        new="by_size(S.abs(), permuted(advantages, GROUP, seed), [16])",  # a common part added
        breaks='assert abs(shuffled["full gradient"]) < 0.12',
    ),
    Mutation(
        old="by_size(S, permuted(advantages, GROUP, seed), [16])",
        new="by_size(S - S.mean(dim=0), permuted(advantages, GROUP, seed), [16])",  # no common part
        breaks='assert shuffled["row"] > 0.9',
    ),
    # who owns a centroid
    Mutation(
        old="(parts @ mu / (mu @ mu))",
        new="(parts @ mu / mu.norm())",
        breaks="assert abs(sum(found) - 1) < 1e-3",
    ),
    Mutation(
        old="shares(parts[:4])",
        new="shares(parts[:4].flip(0))",  # order of the parts reversed
        breaks="assert abs(found[3]) < 0.02",
    ),
    Mutation(
        old='("row", row_parts)',
        new='("row", full_parts)',
        breaks="assert row_found[1] > 0.8",
    ),
    Mutation(
        old='("full gradient", full_parts)',
        new='("full gradient", row_parts)',
        breaks="assert full_found[0] > ",
    ),
    # equal masses
    Mutation(
        old="pos - s * neg, pos - neg",
        new="pos + s * neg, pos - neg",
        breaks='assert turns["full gradient"][-1] > 0.85',
    ),
    Mutation(
        old="1.5, 1.75, 2.0]",
        new="1.5, 1.75, 1.0]",  # equal masses
        breaks='assert turns["row"][-1] < 0.6',
    ),
    Mutation(
        old="c = (mu_pos + mu_neg) / 2",
        new="c = mu_pos + mu_neg",
        breaks="assert gap < 1e-4",
    ),
]
