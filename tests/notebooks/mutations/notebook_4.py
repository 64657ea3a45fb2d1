"""Mutations of notebook 4: DelTA's coefficients."""

from mutations import Mutation

MUTATIONS = [
    # the blackboard
    Mutation(
        old="delta = margins(board.v, board.A, mu_pos, mu_neg)",
        new="delta = margins(board.v, board.A, mu_neg, mu_pos)",  # sides swapped
        breaks="assert torch.allclose(delta, torch.tensor([0.0, 1.0",
    ),
    Mutation(
        old="gamma = temperatures(delta, board.A)",
        new="gamma = [2 * g for g in temperatures(delta, board.A)]",
        breaks="assert torch.allclose(alpha, torch.tensor([0.5, s",
    ),
    Mutation(
        old="last = 1 / (1 + np.exp(-4 * w))",
        new="last = s",  # a fresh temperature
        breaks="assert torch.allclose(delta_coefficients(board.v",
    ),
    Mutation(
        old="w = s / (s + 0.5)",
        new="w = 0.5",  # Eq. 7 without its scores
        breaks="assert torch.allclose(delta_coefficients(board.v",
    ),
    # Eqs. 5 and 6
    Mutation(
        old="f = grid * margin + temperature * h",
        new="f = grid * margin + 2 * temperature * h",
        breaks="assert max(off) < 2e-5",
    ),
    Mutation(
        old="value = a * margin - temperature *",
        new="value = a * margin - 1.01 * temperature *",
        breaks="assert max(map(abs, slope)) < 1e-9",
    ),
    Mutation(
        old="float(f.diff().diff().max()) / temperature",
        new="float(f.diff().diff().max())",
        breaks="assert max(bend) < -3.9",
    ),
    Mutation(
        old="- np.exp(-abs(x)) if x",
        new="- np.exp(-2 * abs(x)) if x",
        breaks="assert max(cold) < 1e-12",
    ),
    # the lag
    Mutation(
        old="lagged = spread  # for the next margins",
        new="lagged = spread if k == 0 else lagged  # γ⁽⁰⁾ forever",
        breaks="assert torch.allclose(ours / ours.mean(), theirs",
    ),
    Mutation(
        old='lag_pos, lag_neg = in_units(story["lagged"][1])',
        new='lag_pos, lag_neg = in_units(story["fresh"][1])',
        breaks="assert min(float(lag_pos.std())",
    ),
    Mutation(
        old="return delta[pos] / gamma_pos, delta[neg] / gamma_neg",
        new="return delta[pos] / gamma_pos + 9, delta[neg] / gamma_neg + 9",
        breaks="assert max(abs(float(lag_pos.mean()))",
    ),
    Mutation(
        old="shuffled.append(order.repeat_interleave(tokens.length))",
        new="shuffled.append(A)",  # nothing shuffled
        breaks='assert name != "row" or middle',
    ),
    # Eq. 8
    Mutation(
        old="J = (lam * term).sum() / lam.sum()",
        new="J = (lam * term).sum() / (N * lam.max())",
        breaks="assert error < 1e-3",
    ),
    Mutation(
        old="lam_bar = delta_coefficients(v, A)",
        new="lam_bar = delta_coefficients(v, A, pieces=Pieces(normalise=lambda lam: lam * 1.01))",
        breaks="assert abs(float(lam_bar.mean()) - 1)",
    ),
    Mutation(
        old="lam_min=8, lam_max=12)",
        new="lam_min=8, lam_max=10)",
        breaks="assert torch.allclose(delta_coefficients(v, A, lam_min=8",
    ),
    Mutation(
        old='"DelTA": lam_bar,',
        new='"DelTA": equal_sides(range_map, story["lagged"][1][2], A, 0.8, 1.2),',
        breaks='assert mass["DelTA"][1] > 1.05',
    ),
    # why margins grow
    Mutation(
        old="exact += sign * (w * score) @ away / (w @ score)",
        new="exact += (w * score) @ away / (w @ score)",
        breaks="assert off_by < 1e-3",
    ),
    Mutation(
        old="first_order += (w * (away @ d)) @ away / float(g)",
        new="first_order += 4 * (w * (away @ d)) @ away / float(g)",
        breaks='assert name != "row" or (min(errors)',
    ),
    Mutation(
        old="eigenvectors[:, -1]",
        new="eigenvectors[:, 0]",
        breaks="assert abs(cosines[0, 1]) > 0.8",
    ),
]
