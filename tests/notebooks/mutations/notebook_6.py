"""Mutations of notebook 6: does the credit land where it should?"""

from mutations import Mutation

MUTATIONS = [
    # the blackboard
    Mutation(
        old="slope = torch.autograd.grad(z.softmax(dim=0) @ Q, z)[0]\nwords_v",
        new="slope = torch.autograd.grad(z.softmax(dim=0) @ Q.flip(0), z)[0]\nwords_v",
        breaks="assert torch.allclose(slope, torch.tensor([0, 1 / 8, -1 / 8])",
    ),
    Mutation(
        old="by_credit = (board.p * (Q - V)) @ words_v",
        new="by_credit = (Q - V) @ words_v",
        breaks="assert torch.allclose(by_credit, slope",
    ),
    Mutation(
        old='(("reward", board.rewards - V)',
        new='(("reward", board.rewards)',
        breaks='assert abs(variance["reward"] - 8 / 64)',
    ),
    Mutation(
        old='("credit", Q[board.token] - V))',
        new='("credit", Q[board.token]))',
        breaks='assert abs(variance["credit"] - 5 / 64)',
    ),
    # the derivation, on a tree
    Mutation(
        old="credit = (V1[x] - V0).detach() * v1 + (R[x, y] - V1[x]).detach() * v2",
        new="credit = (V1[x] - V0).detach() * v2 + (R[x, y] - V1[x]).detach() * v1",
        breaks="assert off < 1e-9",
    ),
    # truth by branching
    Mutation(
        old="mixed = p @ by_digit",
        new="mixed = np.where(p < 0.5, p, 0) @ by_digit",
        breaks="assert abs(V - direct) < 5",
    ),
    Mutation(
        old="truth.advantages_of(rewards, places, len(response), reward=0.0)",
        new="truth.advantages_of(rewards, places, len(response), reward=1.0)",
        breaks="assert abs(credit.sum() + value[0])",
    ),
    # the file of Q - V
    Mutation(
        old="sums = np.add.reduceat(gain, first)",
        new="sums = np.add.reduceat(size, first)",
        breaks="assert off < 0.01",
    ),
    Mutation(
        old='chance = known["one_minus_p"]\nspread',
        new='chance = known["one_minus_p"] / 4\nspread',
        breaks="assert beyond < 1e-6",
    ),
    # AUC and ties
    Mutation(
        old="((a[:, None] > b).double()",
        new="((a[:, None] < b).double()",
        breaks="assert abs(by_pairs - auc(weight, hit))",
    ),
    Mutation(
        old="above = forking[side] > 1",
        new="above = forking[side] <= 1",
        breaks="assert abs(0.5 + (h - f) / 2 - auc(forking[side], hit))",
    ),
    # margins
    Mutation(
        old="downward = margins(v, -one, mu_pos, mu_neg)",
        new="downward = margins(v, one, mu_pos, mu_neg)",
        breaks="assert float((upward + downward).abs().max())",
    ),
    Mutation(
        old="(1 - float(A[n] / mass_pos)) ** 2",
        new="(1 - float(A[n] / mass_pos))",
        breaks="assert max(abs(x - 1) for x in ratios)",
    ),
    # the study
    Mutation(
        old='study = Study(lines_before(Path("../results/credit.csv")))',
        new='study = Study(lines_before(Path("../results/credit.csv"))[2:])',
        breaks="assert all(len(study.numbers[row, b, kind]) == count",
    ),
    Mutation(
        old="(some - dapo).std(ddof=1) / n**0.5",
        new="(some - dapo).std(ddof=0) / n**0.5",
        breaks="assert n == 5 and abs(by_hand",
    ),
    Mutation(
        old='some = study.cells("cosine")["dapo"], study.cells("cosine")["lm_head, K = 1"]',
        new='some = study.cells("cosine")["lm_head, K = 1"], np.zeros(5)',
        breaks="assert by_hand < half_width(some)",
    ),
    # the split
    Mutation(
        old="three = torch.stack([rho, rho / of_side, of_side]) * A",
        new="three = torch.stack([rho, rho * of_side, of_side]) * A",
        breaks="assert float((part - update).norm() / part.norm())",
    ),
    Mutation(
        old='means_part, shape_part = study.over_dapo("cosine_means")',
        new='means_part, shape_part = study.over_dapo("cosine_shape")',
        breaks='assert abs(means_part["lm_head, side"]).max()',
    ),
    Mutation(
        old='shape_part["lm_head, K = 1"]',
        new='shape_part["lm_head, K = 0"]',
        breaks="assert abs(side_row - lagged_row).max()",
    ),
    # why finding is not enough
    Mutation(
        old="foretold += (w * (away @ d)) @ away / (5 * gamma)",
        new="foretold -= (w * (away @ d)) @ away / (5 * gamma)",
        breaks="assert cosine(added, foretold) > 0.7",
    ),
    Mutation(
        old="pieces[name, which] = weight * A * some",
        new="pieces[name, which] = weight * A * ~some",
        breaks='assert length["exact, K = 0, adds", "connectives"]',
    ),
    # the open exercise
    Mutation(
        old="clear = size > 2 * error\n",
        new="clear = gain > 2 * error\n",
        breaks='assert abs(score(mark) - lower["oracle"])',
    ),
]
