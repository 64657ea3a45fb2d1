"""Mutations of notebook 0: a first look."""

from mutations import Mutation

MUTATIONS = [
    Mutation(
        old="A, decisive = tokens.advantage, graded.decisive",
        new="A, decisive = tokens.advantage, ~graded.decisive",
        breaks="assert decisive[A < 0]",
    ),
    Mutation(
        old="auc(weight[side], decisive[side])",
        new="auc(weight[side] + decisive[side], decisive[side])",
        breaks="assert ordering(torch.ones(len(A)))",
    ),
    Mutation(
        old="normalise(0.8 + 0.4 * decisive.float())",
        new="normalise(0.8 + 0.4 * (A > 0).float() * decisive)",
        breaks="assert min(ordering(knowing))",
    ),
    Mutation(  # a different range
        old="lam = delta_coefficients(tokens.kept, A)",
        new="lam = delta_coefficients(tokens.kept, A, lam_min=0.5)",
        breaks="assert ratio",
    ),
    Mutation(  # not normalised
        old="lam = delta_coefficients(tokens.kept, A)",
        new="lam = 1.1 * delta_coefficients(tokens.kept, A)",
        breaks="assert abs(float(lam.mean()) - 1)",
    ),
    Mutation(  # greedy, labelled as sampled
        old="temperature=temperature)",
        new="temperature=0.0)",
        breaks="assert max(right[regime, 1.0]",
    ),
    Mutation(  # sampled, labelled as greedy
        old="temperature=temperature)",
        new="temperature=1.0)",
        breaks='assert right["sharpen", 0.0]',
    ),
    Mutation(  # the same base twice
        old='toy.base_model(noise=0.1, regime="learn")[0]',
        new="lm",
        breaks='assert right["learn", 0.0]',
    ),
    Mutation(  # only the rewarded words
        old="by_hand = (board.A[:, None] * board.v).sum(0)",
        new="by_hand = (board.rewards[:, None] * board.v).sum(0)",
        breaks="assert torch.allclose(by_hand, step",
    ),
    Mutation(  # both steps wrong in the same way
        old="board = blackboard()",
        new="board = blackboard()\nboard.A.copy_(torch.tensor([1.0, 1.0, 1.0, -1.0]))",
        breaks="assert torch.allclose(step, torch.tensor",
    ),
    Mutation(  # a leave-one-out baseline does not shorten the step
        old="baselined = R - R.mean(dim=1, keepdim=True)",
        new="baselined = (R - R.mean(dim=1, keepdim=True)) * G / (G - 1)",
        breaks="assert torch.allclose(mean_step",
    ),
    Mutation(
        old="    A_k = group_advantages(torch.tensor([1.0] * k + [0.0] * (G - k)), G)",
        new="    A_k = torch.tensor([1.0] * k + [0.0] * (G - k)) - 0.5",
        breaks="assert abs(float(A_k.sum()))",
    ),
    Mutation(  # the population's standard deviation
        old="spread = (k * (G - k) / (G * (G - 1))) ** 0.5",
        new="spread = (k * (G - k) / (G * G)) ** 0.5",
        breaks="assert abs(float(A_k[0])",
    ),
    Mutation(
        old="group_advantages(torch.ones(G), G)",
        new="group_advantages(torch.arange(8.0), G)",
        breaks="assert not group_advantages",
    ),
    Mutation(  # ratio inverted
        old="r = p_new[board.token] / board.p[board.token]",
        new="r = board.p[board.token] / p_new[board.token]",
        breaks="assert torch.isclose((r * board.rewards)",
    ),
    Mutation(  # sides swapped
        old="side_centroids(board.v, board.A)",
        new="side_centroids(board.v, -board.A)",
        breaks="assert mu_pos.tolist()",
    ),
    Mutation(
        old="margins(board.v, board.A, mu_pos, mu_neg)",
        new="margins(board.v, board.A, mu_neg, mu_pos)",
        breaks="assert delta.tolist()",
    ),
    Mutation(  # over all tokens instead of one side's
        old="gamma = temperatures(delta, board.A)",
        new="gamma = [delta.std()] * 2",
        breaks="assert [float(x) for x in gamma]",
    ),
    Mutation(  # not normalised
        old="lam_bar = lam_board * 4 / lam_board.sum()",
        new="lam_bar = lam_board",
        breaks="assert torch.allclose(lam_bar",
    ),
]
