"""Mutations of notebook 1: the update is a linear discriminator."""

from mutations import Mutation

MUTATIONS = [
    Mutation(  # p from another policy
        old="v_of_word = torch.eye(3).double() - board.p",
        new="v_of_word = torch.eye(3).double() - board.p.flip(0)",
        breaks="assert (actual - first)",
    ),
    Mutation(  # square of the mean not subtracted
        old="variance = board.p.double() @ along**2 - (board.p.double() @ along) ** 2",
        new="variance = along @ along",
        breaks="assert (actual - second)",
    ),
    Mutation(  # slopes 10 % too small
        old="return jvp(all_logprobs, (theta,), (as_parameters(d),))[1]",
        new="return 0.9 * jvp(all_logprobs, (theta,), (as_parameters(d),))[1]",
        breaks="assert 1.8 < order",
    ),
    Mutation(  # without ε below 1 there is a kink at 1
        old="low, high = 0.2, 0.28",
        new="low, high = 0.0, 0.28",
        breaks='assert abs(from_left - float(advantage)) < 1e-6, "no kink to the left"',
    ),
    Mutation(
        old="low, high = 0.2, 0.28",
        new="low, high = 0.2, 0.0",
        breaks='assert abs(from_right - float(advantage)) < 1e-6, "no kink to the right"',
    ),
    Mutation(  # |A| instead of A
        old="summed += one_A * one_v",
        new="summed += one_A.abs() * one_v",
        breaks='assert error < 1e-3, "the surrogate',
    ),
    Mutation(  # |A| missing from the mean
        old="mean_neg = (weight[:, None] * v[A < 0]).sum(0) / weight.sum()",
        new="mean_neg = v[A < 0].mean(0)",
        breaks="assert error_pos < 1e-4",
    ),
    Mutation(  # sides swapped
        old="float(mass_pos) * mean_pos - float(mass_neg) * mean_neg",
        new="float(mass_neg) * mean_neg - float(mass_pos) * mean_pos",
        breaks='assert error < 1e-3, "and the update',
    ),
    Mutation(  # positive side only
        old="(mass_pos * slope(mu_pos) - mass_neg * slope(mu_neg)) / size",
        new="mass_pos * slope(mu_pos) / size",
        breaks="assert off < 1e-3",
    ),
    Mutation(
        old="discriminator_scores(v, mu_pos, mu_neg, mass_pos, mass_neg)",
        new="discriminator_scores(v, mu_neg, mu_pos, mass_pos, mass_neg)",
        breaks="assert off_sampled",
    ),
    Mutation(  # not weighted by π
        old="all_logprobs(theta).exp() * score",
        new="torch.ones_like(score) / 30 * score",
        breaks="assert balance",
    ),
    Mutation(  # against the gradient
        old="by_gradient, by_adam = change(eta * d), change(eta * adam)",
        new="by_gradient, by_adam = change(-eta * d), change(eta * adam)",
        breaks="assert plain > 0.97",
    ),
    Mutation(
        old="adam_slopes = slope(adam)",
        new="adam_slopes = score",
        breaks="assert by_own > 0.97",
    ),
    Mutation(  # Adam's normalisation disabled
        old="adam = update / (update.abs() + 1e-8)",
        new="adam = update / (update.abs() + 1e8)",
        breaks="assert 0.5 < by_eq_4",
    ),
    Mutation(
        old="for eta in (0.003, 0.03, 0.3, 3.0):",
        new="for eta in (0.003, 0.03):",
        breaks="assert shares[-1][0] < plain",
    ),
    Mutation(  # longest residual instead of shortest
        old="shorter = 2 * missing - gram.diagonal()",
        new="shorter = gram.diagonal() - 2 * missing",
        breaks="assert cosine(one_by_one)",
    ),
]
