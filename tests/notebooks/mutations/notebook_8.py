"""Mutations of notebook 8: what the paper leaves open."""

from mutations import Mutation

MUTATIONS = [
    # the blackboard: one uniform draw or two
    Mutation(
        old="apart = (X[:, None] - Y).ravel()",
        new="apart = X - Y",
        breaks="assert abs(apart.var() - 27 / 64)",
    ),
    Mutation(
        old="shared = X - Y  # [8]",
        new="shared = X - Y[::-1]",
        breaks="assert abs(shared.var() - 7 / 64)",
    ),
    Mutation(
        old="X.var() + Y.var() - 2 * covariance",
        new="X.var() + Y.var() - covariance",
        breaks="assert abs(X.var() + Y.var()",
    ),
    # pairing
    Mutation(
        old="seeds = range(training.FIRST_SEED, training.FIRST_SEED + 16)",
        new="seeds = range(training.FIRST_SEED + 16)",
        breaks="assert not set(seeds) & set(pilot.PILOT_SEEDS)",
    ),
    Mutation(
        old="surprise.counted_jobs(pilots, surprise.SEEDS)",
        new="list(trained)",  # the pilot's too
        breaks="assert surprise.PILOT_SEED not in",
    ),
    Mutation(
        old="y.var(ddof=1) - 2 * np.cov(x, y)[0, 1]",
        new="y.var(ddof=1)",
        breaks="assert abs(half_width(d) - by_hand)",
    ),
    Mutation(
        old="by_hand = t975(len(d) - 1)",
        new="by_hand = t975(len(d))",
        breaks="assert abs(half_width(d) - by_hand)",
    ),
    Mutation(
        old='x, y = pairs["oracle in range"]',
        new='x, y = pairs["oracle in range"]\ny = -y',
        breaks="assert half_width(x - y) < unpaired",
    ),
    # power
    Mutation(
        old="t = d.mean(axis=1) / (d.std(axis=1, ddof=1) / math.sqrt(n))",
        new="t = d.mean(axis=1) / (1 / math.sqrt(n))",  # as if s were known
        breaks="assert abs(false - 0.05) < 0.01",
    ),
    Mutation(
        old="(t_quantile(1 - level / 2, n - 1) + t_quantile(power, n - 1))",
        new="t_quantile(1 - level / 2, n - 1)",  # found half the time
        breaks="assert abs(hit - 0.8) < 0.04",
    ),
    Mutation(
        old="seen_from(len(d), level) * d.std(ddof=1)) < 1e-9",
        new="seen_from(len(d), level) * d.std()) < 1e-9",
        breaks="assert abs(smallest_seen(d, level)",
    ),
    # Holm
    Mutation(
        old="level / (len(ordered) - place)",
        new="level",
        breaks="assert stepwise(level) ==",
    ),
    Mutation(
        old="t_quantile(1 - 0.025 / 13, 15)",
        new="t_quantile(1 - 0.025, 15)",
        breaks="assert strict < 0.06",
    ),
    Mutation(
        old="nulls = apart[:, 1:] - apart[:, :1]",
        new="nulls = apart[:, 1:2] - apart[:, :1]",  # one row only
        breaks="assert strict < 0.06",
    ),
    # contrasts
    Mutation(
        old='lag = contrasts["row proxy: γ fresh, not lagged"]',
        new='lag = contrasts["row proxy: no refinement"]',
        breaks="assert np.allclose(against_dapo",
    ),
    # the winner's curse
    Mutation(
        old="winner = old.argmax(axis=1)",
        new="winner = new.argmax(axis=1)",
        breaks="assert abs(again.mean()) < 0.03",
    ),
    Mutation(
        old="1 / math.sqrt(math.pi)) < 0.02",
        new="1 / math.sqrt(2 * math.pi)) < 0.02",
        breaks="assert abs(pick_best(np.eye(2))",
    ),
    Mutation(
        old='confirmation = runs.finished_runs(Path("../results/confirm.csv"))',
        new="confirmation = done",  # confirmed on the runs that selected it
        breaks="assert not fresh & {*seeds, *pilot.PILOT_SEEDS}",
    ),
    # to sharpen or to learn
    Mutation(
        old="toy.load_base(setting.base())",
        new="toy.load_base(places.SETTINGS[places.STUDY].base())",  # the same base everywhere
        breaks="assert before[places.STUDY] > 0.9",
    ),
    # noise and sparsity
    Mutation(
        old="given = np.abs(R - turned)",
        new="given = R * (1 - np.array(turned))",  # rewards lost, not flipped
        breaks="assert np.allclose(expected, (1 - 2 * flip)",
    ),
    Mutation(
        old="return 1 - p**G - (1 - p) ** G",
        new="return 1 - p**G",
        breaks="assert abs(measured - teaches(accuracy, G))",
    ),
    Mutation(
        old='noisy = runs.finished_runs(Path("../results/noise.csv"))',
        new="noisy = confirmation",
        breaks="assert not trained_on & {*seeds, *pilot.PILOT_SEEDS, *fresh}",
    ),
    # what to try
    Mutation(
        old="while seen_from(n, level, power) > delta:",
        new="while seen_from(n, level) / 2 > delta:",
        breaks="assert found(1.0, seeds_needed(1.0)) > 0.77",
    ),
    # exercises
    Mutation(
        old="alarms = false_gains(a=0.0)",
        new="alarms = false_gains(a=0.5)",
        breaks="assert abs(alarms - 0.05) < 0.01",
    ),
    Mutation(
        old="if 13 * n1 + (k + 1) * n2 > budget",
        new="if 12 * n1 + (k + 1) * n2 > budget",
        breaks="assert math.isnan(claims(5, 1, 2))",
    ),
]
