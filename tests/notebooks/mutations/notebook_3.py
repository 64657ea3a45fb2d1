"""Mutations of notebook 3: what stands in for a token's gradient."""

from mutations import Mutation

MUTATIONS = [
    # the blackboard
    Mutation(
        old="[[np.log(2.0), 0.0]]",
        new="[[np.log(3.0), 0.0]]",
        breaks="assert torch.allclose(logprob.exp(), board.p)",
    ),
    Mutation(
        old="lambda: W_board, k=3",
        new="lambda: W_board, k=1",  # truncated softmax
        breaks="assert torch.allclose(board_hidden, by_hand",
    ),
    Mutation(
        old="board_row = token_gradient_proxy(h, logprob)",
        new="board_row = logprob.exp()[:, None] * h",  # p instead of 1 - p
        breaks="assert torch.allclose(board_row, ",
    ),
    # autograd
    Mutation(
        old="token_gradient_proxy(one.hidden, one.logprob)[0], by_head[y]",
        new="one.hidden[0], by_head[y]",  # 1 - p omitted
        breaks="assert row_off < 1e-3",
    ),
    Mutation(
        old="lm_head_gradient(one, policy.head)[0], by_head.flatten()",
        new="lm_head_gradient(one._replace(token=y[None] * 0), policy.head)[0], by_head.flatten()",
        breaks="assert head_off < 1e-3",
    ),
    Mutation(
        old="k=len(W))[0], g)",
        new="k=1)[0], g)",
        breaks="assert hidden_off < 1e-3",
    ),
    Mutation(
        old="grad_outputs=g, retain_graph",
        new="grad_outputs=W[y], retain_graph",  # without the mean Σ p W
        breaks="assert body_off < 1e-3",
    ),
    # two words in one context
    Mutation(
        old="(p.square().sum() - p[pair.token].sum())",
        new="(-p[pair.token].sum())",  # Σ p² omitted
        breaks="assert np.abs(np.array(algebra) - 1).max() < 0.01",
    ),
    Mutation(
        old="likeliest = logp.topk(2).indices",
        new="likeliest = logp.sort().indices[:2]",  # the two least likely
        breaks="assert head_cosines.max() < 0",
    ),
    Mutation(
        old="by_row = token_gradient_proxy(pair.hidden, pair.logprob)",
        new="by_row = lm_head_gradient(pair, policy.head)",  # depends on the word
        breaks="assert row_cosines.min() > 0.999",
    ),
    Mutation(
        old="vectors = (by_row, by_top, by_head, by_all)",
        new="vectors = (by_row, by_top, by_head, by_row)",
        breaks="assert full_cosines.mean() < -0.05",
    ),
    # compared with the full gradient
    Mutation(
        old='"row": token_gradient_proxy(rows.hidden, rows.logprob),',
        new='"row": lm_head_gradient(rows, policy.head),',
        breaks='assert (gram["head"] > ',
    ),
    Mutation(
        old="one_hot(rows.token, len(W)).float()\n    return (place",
        new="one_hot(0 * rows.token, len(W)).float()\n    return (place",  # word ignored
        breaks='assert (gram["row at its word"] > ',
    ),
    Mutation(
        old="correlation(*lam)]",
        new="correlation(lam[1], lam[1])]",
        breaks='assert lam["head"].mean() > ',
    ),
    Mutation(
        old="F.square().sum()) for F in full]",
        new="F.norm()) for F in full]",  # not a share
        breaks="assert min(in_head) > 0.1",
    ),
    # top-K
    Mutation(
        old=".sum(dim=1) - 2 * (1 - mass)",
        new=".sum(dim=1) - (1 - mass)",
        breaks="assert gap.abs().max() < 1e-5",
    ),
    Mutation(
        old="bound = 2 * (1 - mass) * longest",
        new="bound = 0.01 * (1 - mass) * longest",
        breaks="assert (error <= bound + 1e-4).all()",
    ),
]
