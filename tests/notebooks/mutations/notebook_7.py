"""Mutations of notebook 7: the duel."""

from mutations import Mutation

# Seconds of training instead of minutes: (cell text, its replacement in tests).
SMALLER = [
    (
        "Setting(steps=20, rate=3e-4, prompts=8, group=8)",
        "Setting(steps=2, rate=3e-4, prompts=4, group=4)",
    ),
    ("seeds = range(4)", "seeds = range(2)"),
]

MUTATIONS = [
    # your weights
    Mutation(
        old="return weight / weight.mean()",
        new="return weight",
        breaks="assert abs(float(rho.mean()) - 1)",
    ),
    # a pair
    Mutation(
        old="start = [curve[0] for curve in pairs.dapo]",
        new="start = [1 + curve[0] for curve in pairs.dapo]",
        breaks="assert [curve[0] for curve in pairs.yours]",
    ),
    # intervals
    Mutation(
        old="error = studies.std(axis=1, ddof=1)",
        new="error = studies.std(axis=1, ddof=0)",
        breaks="assert abs(t975(3) * error[0]",
    ),
    Mutation(
        old="np.mean(off < t975(3) * error)",
        new="np.mean(off < t975(30) * error)",  # as if s were known from many pairs
        breaks="assert abs(held - 0.95)",
    ),
    Mutation(
        old="np.mean(off < 1.96 * error)",
        new="np.mean(off < t975(3) * error)",
        breaks="assert held_by_normal < 0.9",
    ),
    # stopping early
    Mutation(
        old="t975(n - 1) * first.std(axis=1, ddof=1)",
        new="1.96 * first.std(axis=1, ddof=1)",
        breaks="assert max(abs(np.array(once)",
    ),
    Mutation(
        old="claimed |= excludes  # and stop",
        new="claimed = excludes  # and forget it",
        breaks="assert looking[-1] > 3 * 0.05",
    ),
]
