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
    # true credit by branching
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
    # the Q - V file
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
        breaks="assert abs(by_pairs - ranking.auc(weight, hit))",
    ),
    Mutation(
        old="float((b > 1).double().mean())",
        new="float((b <= 1).double().mean())",
        breaks="assert abs(0.5 + (h - f) / 2 - by_pairs)",
    ),
    # means within a context
    Mutation(
        old="context_share(1 - p, p, rows.hidden, A != 0)",
        new="context_share(logp + entropy, p, rows.hidden, A != 0)",
        breaks="assert of_row > 0.5",
    ),
    Mutation(
        old="context_share(logp + entropy, p,",
        new="context_share(logp, p,",  # without its mean
        breaks="assert of_surprise < 1e-6",
    ),
    Mutation(
        old="shift = A.abs() @ v / A.abs().sum()",
        new="shift = 0 * v[0]",
        breaks="assert before > 0.9 and after < 0",
    ),
    Mutation(
        old="delta_coefficients(v - shift, A) - delta_coefficients(v, A)",
        new="delta_coefficients(v - 2 * (A > 0)[:, None] * shift, A) - delta_coefficients(v, A)",
        breaks="assert changed < 1e-3",
    ),
    # which proxy fails
    Mutation(
        old='found["sharpen"]["lm_head, K = 0"], found',
        new='found["sharpen"]["oracle in range"], found',
        breaks='assert abs(mirror["auc_pos"]',
    ),
    Mutation(
        old='found["sharpen"]["surprise, K = 1"]\nassert',
        new='found["sharpen"]["topk, K = 1"]\nassert',
        breaks='assert min(fixed["auc_pos"]',
    ),
    Mutation(
        old='toy.base_model(noise=0.1, regime="learn")[0]}',
        new="lm}",  # the same base twice
        breaks='assert found["learn"]',
    ),
    # the study
    Mutation(
        old="difference.std(ddof=1) / len(difference) ** 0.5",
        new="difference.std(ddof=0) / len(difference) ** 0.5",
        breaks="assert len(difference) == 5",
    ),
    Mutation(
        old="difference = rows_of_file[published] - dapo",
        new="difference = rows_of_file[published] + dapo",
        breaks="assert by_hand < statistics.half_width",
    ),
    # why finding is not enough
    Mutation(
        old="foretold += (w * (away @ d)) @ away / (5 * gamma)",
        new="foretold -= (w * (away @ d)) @ away / (5 * gamma)",
        breaks="assert alike > 0.7",
    ),
    Mutation(
        old="weight * A * torch.tensor(kind == which)",
        new="weight * A * torch.tensor(kind != which)",
        breaks='assert length["head, K = 0, adds", "connective"]',
    ),
    # the open exercise
    Mutation(
        old="clear = size > 2 * error\n",
        new="clear = size <= 2 * error\n",
        breaks="assert abs(score(np.zeros(len(size)))",
    ),
]
