"""Mutations of notebook 5: every method is a token weight."""

from mutations import Mutation

MUTATIONS = [
    # the blackboard
    Mutation(
        old="torch.cat([long, short]).mean()",
        new="torch.stack([long.mean(), short.mean()]).mean()",
        breaks="assert torch.allclose(3 * by_dapo",
    ),
    Mutation(
        old="torch.stack([long.mean(), short.mean()]).mean()",
        new="torch.stack([long.sum(), short.sum()]).mean()",
        breaks="assert torch.allclose(3 * by_grpo",
    ),
    Mutation(
        old="step = (lam_bar * board.A) @ board.v",
        new="step = (lam_bar * board.A.abs()) @ board.v",
        breaks="assert torch.allclose(step, lam_bar[1]",
    ),
    # Eq. 9 for both signs of A
    Mutation(
        old="A = torch.full_like(r, advantage)",
        new="A = torch.full_like(r, abs(advantage))",
        breaks="assert abs(left - advantage) < 1e-3",
    ),
    Mutation(
        old='rise = surrogate("dapo", r, 1.3)',
        new='rise = surrogate("reinforce", r, 1.3)',
        breaks="assert abs(rise[-1]) < 1e-9",
    ),
    Mutation(
        old='fall = surrogate("dapo", r, -0.7)',
        new='fall = surrogate("dapo", r, 0.7)',
        breaks="assert abs(fall[0]) < 1e-9",
    ),
    # Eqs. 12 to 14
    Mutation(
        old="J_grpo = torch.stack([part.mean() for part in s.split(lengths)]).mean()",
        new="J_grpo = torch.stack([part.sum() for part in s.split(lengths)]).sum() / N",
        breaks='assert torch.allclose(weights["grpo"], read_off["grpo"]',
    ),
    Mutation(
        old="J_dapo = s.mean()",
        new="J_dapo = s.sum() / B",
        breaks='assert torch.allclose(weights["dapo"], read_off["dapo"]',
    ),
    Mutation(
        old="n = int(np.ceil(0.2 * N))",
        new="n = int(np.ceil(0.25 * N))",
        breaks="assert int(kept.sum()) == n",
    ),
    Mutation(
        old='ours = weights["forking_tokens"]\n',
        new='ours = weights["forking_tokens"].flip(0)\n',
        breaks="assert float(tokens.entropy[kept].min())",
    ),
    Mutation(
        old="assert torch.allclose(ours[kept], torch.tensor(N / n))",
        new="ours = by_paper\nassert torch.allclose(ours[kept], torch.tensor(N / n))",
        breaks="assert torch.allclose(ours[kept], torch.tensor(N / n))",
    ),
    Mutation(
        old="side_centroids(tokens.kept, A, weights[name])",
        new='side_centroids(tokens.kept, A, weights["delta"])',
        breaks='assert abs(gap["grpo"]) < 1e-4',
    ),
    Mutation(
        old="by_length = float((tokens.length * graded.advantages).sum()",
        new="by_length = float(tokens.length.sum()",
        breaks='assert abs(gap["dapo"] - by_length)',
    ),
    # Eqs. 10 and 11
    Mutation(
        old="(mass_pos * mu_pos - mass_neg * mu_neg) / len(a)",
        new="(mass_pos * mu_pos + mass_neg * mu_neg) / len(a)",
        breaks="assert error < 1e-3",
    ),
    Mutation(
        old="side_centroids(G, a, rho[name])  # Eq. 11",
        new="side_centroids(G, a)",
        breaks="assert error < 1e-3",
    ),
    Mutation(
        old='s[rho["forking_tokens"] > 0].mean()',
        new='s[rho["forking_tokens"] > 0].sum() / len(s)',  # the paper's normaliser
        breaks="assert error < 1e-3",
    ),
    Mutation(
        old="(lam * s).sum() / lam.sum()",
        new="(lam * s).mean()",
        breaks="assert error < 1e-3",
    ),
    # Eq. 15 and SAPO
    Mutation(
        old="sum(2 ** (-(k - t) / 32) * float(z[k]) for k in range(t, len(z)))",
        new="sum(2 ** (-(k - t) / 32) * float(z[k]) for k in range(t + 1, len(z)))",
        breaks="assert torch.allclose(fipo, F.exp().clamp(1, 1.2)",
    ),
    Mutation(
        old='assert weights["fipo"].eq(1).all()  # at',
        new='weights = weights | {"fipo": fipo}\nassert weights["fipo"].eq(1).all()  # at',
        breaks='assert weights["fipo"].eq(1).all()',
    ),
    Mutation(
        old="assert float(fipo.mean()) > 1.001",
        new='fipo = METHODS["fipo"].weights(tokens, flags)\nassert float(fipo.mean()) > 1.001',
        breaks="assert float(fipo.mean()) > 1.001",
    ),
    Mutation(
        old="tau = torch.where(A > 0, 1.0, 1.05)",
        new="tau = torch.where(A > 0, 2.0, 2.1)",
        breaks="assert torch.allclose(effective, by_formula",
    ),
    # angles
    Mutation(
        old="rows = {name: weights[name] for name in order}",
        new='rows = {name: weights[name] for name in order} | {"fipo": fipo}',
        breaks='assert max(angle["dapo"]["fipo"]',
    ),
    Mutation(
        old='rows["oracle"] = oracle / oracle.mean()',
        new='rows |= {"oracle": oracle, "sapo": oracle}',
        breaks='assert angle["grpo"]["sapo"] < 0.1',
    ),
    Mutation(
        old="oracle = torch.where(graded.decisive, 1.1, 0.1)",
        new='oracle = torch.where(graded.decisive, 1.1, 0.1)\nrows["delta"] = rows["dapo"]',
        breaks='assert min(angle["dapo"][name] for name',
    ),
    Mutation(
        old='rows["oracle"] = oracle / oracle.mean()\n',
        new='rows |= {"oracle": oracle, "forking_tokens": weights["delta"].sqrt()}\n',
        breaks='assert angle["dapo"]["delta"] < angle["dapo"]["forking',
    ),
    Mutation(
        old="(0.5, 1.5), (0.2, 1.8), (0.0, 2.0)]",
        new="(0.2, 1.8), (0.5, 1.5), (0.0, 2.0)]",
        breaks="assert opened[0] < 0.1",
    ),
    # the leaderboard
    Mutation(
        old='rows["oracle"] = torch.where(race.decisive, 1.1, 0.1)',
        new='rows["oracle"] = torch.where(race.decisive, 0.1, 1.1)',
        breaks='assert others["oracle"] > others["dapo"]',
    ),
]
