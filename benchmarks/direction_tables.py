"""The tables and pictures of docs/results/direction.md, from the lines of results/direction.csv."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.direction import (
    DOSES,
    LONGER,
    MAIN_ROWS,
    OF_PAPER,
    PER_STEP,
    PRIMARY,
    SCORES,
    SECONDARY,
    complete,
    row_of_paper,
)
from benchmarks.statistics import (
    half_width,
    is_equivalent,
    mean_interval,
    permutation_p,
    spearman,
)
from benchmarks.tables import print_differences, print_table

ENDS = 5  # number of steps in the means of the first and the last rewards
FLAT = 0.05  # the rise of DAPO's reward below which a setting is flat
BOUND = 0.01  # of equivalence, in mean training reward
LEFTMOST = -0.06  # the pictures show a lower difference here, with its number
LARGE_MODELS = (0.25, 0.55)  # published mean cosines of their states (docs/results/direction.md)

Run = dict[str, np.ndarray | float]
Study = dict[tuple[str, str], dict[int, Run]]  # (setting, row) -> seed -> run


def study_of(lines: list[dict]) -> Study:
    """The runs of the CSV by setting, row and seed, as numbers."""
    study = {}
    for line in lines:
        run = {name: np.array(line[name].split(), dtype=float) for name in PER_STEP}
        others = line.keys() - {"setting", "row", "seed", *PER_STEP}
        run |= {name: float(line[name] or "nan") for name in others}
        study.setdefault((line["setting"], line["row"]), {})[int(line["seed"])] = run
    return study


# ---- outcomes ------------------------------------------------------------------------------------


def mean_reward(run: Run) -> float:
    return run["reward"].mean()


def last_reward(run: Run) -> float:
    return run["reward"][-ENDS:].mean()


def gain(run: Run) -> float:
    return run["reward"][-ENDS:].mean() - run["reward"][:ENDS].mean()


def accuracy(run: Run) -> float:
    return run["accuracy"]


def greedy(run: Run) -> float:
    return run["greedy"]


OUTCOMES = {
    "last 5 steps": last_reward,
    "held-out avg@8": accuracy,
    "held-out greedy": greedy,
}


def paired(
    study: Study, setting: str, a: str, b: str, outcome: Callable = mean_reward
) -> np.ndarray:
    """Row `a` minus row `b` on their common seeds: [seeds]."""
    one, other = study.get((setting, a), {}), study.get((setting, b), {})
    seeds = sorted(one.keys() & other.keys())
    return np.array([outcome(one[seed]) - outcome(other[seed]) for seed in seeds])


def entropy_at_equal_reward(study: Study, setting: str, a: str, b: str, kind: str) -> np.ndarray:
    """The entropy of one kind of token, `a` minus `b`, when both first reach one reward: [seeds].

    The reward is the highest that both reach, as a mean over ENDS steps.
    """

    def running(values: np.ndarray) -> np.ndarray:
        return np.convolve(values, np.ones(ENDS) / ENDS, mode="valid")

    one, other = study[setting, a], study[setting, b]
    found = []
    for seed in sorted(one.keys() & other.keys()):
        pair = one[seed], other[seed]
        reward = min(running(run["reward"]).max() for run in pair)
        entropies = []
        for run in pair:
            first = np.flatnonzero(running(run["reward"]) >= reward - 1e-9)[0]
            entropies.append(running(run[kind])[first])
        found.append(entropies[0] - entropies[1])
    return np.array(found)


# ---- tables --------------------------------------------------------------------------------------


def print_settings(study: Study) -> list[str]:
    """Print DAPO, the mean cosine and collapsed runs of each setting. Returns the rising ones."""
    lines, rising = [], []
    for setting in [*PRIMARY, *LONGER]:
        runs = list(study.get((setting, "dapo"), {}).values())
        if len(runs) < 2:
            continue
        risen = np.mean([gain(run) for run in runs])
        if risen >= FLAT and setting in PRIMARY:
            rising.append(setting)
        collapsed = []
        for row in ("dapo", "S = 0", "S = 1"):
            gains = [gain(run) for run in study[setting, row].values()]
            collapsed.append(f"{sum(x < 0 for x in gains)} of {len(gains)}")
        cosine = np.mean([run["hidden_cosine"] for run in runs])
        reward = mean_interval([mean_reward(run) for run in runs])
        lines.append([setting, reward, f"{risen:.3f}", f"{cosine:.2f}", *collapsed])
    header = ["setting", "DAPO's mean reward", "its rise", "mean cosine"]
    print_table([*header, "collapsed: dapo", "S = 0", "S = 1"], lines)
    return rising


def print_verdict(first: dict[str, float], second: dict[str, float], study: Study) -> None:
    """The protocol's verdict. first, second: setting -> Holm p of the two primary differences."""
    above, below = [], []
    for setting in first:
        means = [paired(study, setting, "S = 1", b).mean() for b in ("dapo", "S = 0")]
        significant = [first[setting] <= 0.05, second[setting] <= 0.05]
        if all(significant) and min(means) > 0:
            above.append(setting)
        if any(s and mean < 0 for s, mean in zip(significant, means, strict=True)):
            below.append(setting)
    verdict = "refuted"
    if len(above) >= 2 and not below:
        verdict = "confirmed" if len(above) >= 4 else "partly confirmed"
    print(f"verdict: {verdict}: above in {above or 'none'}, below in {below or 'none'}\n")


def print_equivalence(study: Study, pairs: list[tuple[str, str]]) -> None:
    """Print 90 % intervals, and whether they lie within ± BOUND."""
    lines = []
    for a, b in pairs:
        for setting in SECONDARY:
            values = paired(study, setting, a, b)
            if len(values) < 2:
                continue
            interval = f"{values.mean():.3f} ± {half_width(values, 0.9):.3f}"
            equivalent = "yes" if is_equivalent(values, BOUND) else "no"
            lines.append([f"{a} minus {b}", setting, interval, equivalent])
    print_table(["difference", "setting", "mean, 90 % interval", f"within ± {BOUND}"], lines)


def of_doses(study: Study) -> dict[str, np.ndarray]:
    """DelTA minus DAPO at the doses that are not primary, in SECONDARY: one family of tests."""
    doses = [dose for dose in DOSES if dose not in ("S = 0", "S = 1")]
    pairs = product(doses, SECONDARY)
    return {f"{dose}, {setting}": paired(study, setting, dose, "dapo") for dose, setting in pairs}


def print_rows(study: Study) -> None:
    """Print every row minus DAPO in the three settings where all rows ran."""
    lines = []
    for row in [row for row in MAIN_ROWS if row != "dapo"]:
        cells = [row]
        for setting in SECONDARY:
            values = paired(study, setting, row, "model, dapo" if row == "model" else "dapo")
            cells.append(f"{mean_interval(values)}" if len(values) > 1 else "")
        runs = study.get((SECONDARY[0], row), {}).values()
        for name in ("lambda_corr_pos", "lambda_corr_neg", "lambda_saturated"):
            values = [run[name] for run in runs if np.isfinite(run[name])]
            cells.append(f"{np.mean(values):.2f}" if values else "")
        lines.append(cells)
    header = ["minus dapo", *SECONDARY, "corr(λ, 1 - p), A > 0", "A < 0", "saturated"]
    print_table(header, lines)


# ---- the paper's rows ----------------------------------------------------------------------------


def paper_and_toy(study: Study, S: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(rows, the paper's scores, the toy's mean difference from DAPO over OF_PAPER)."""
    names, scores, toys = [], [], []
    for name, (score, _) in SCORES.items():
        row = row_of_paper(name, S)
        parts = [paired(study, setting, row, "dapo") for setting in OF_PAPER]
        if all(len(part) for part in parts):
            names.append(name)
            scores.append(score)
            toys.append(np.mean([part.mean() for part in parts]))
    return names, np.array(scores), np.array(toys)


def print_paper(study: Study) -> None:
    """Print the paper's rows at S = 0 and S = 1, and their rank correlations with the paper."""
    lines = []
    for name, (score, _) in SCORES.items():
        cells = [name, f"{score:.2f}"]
        for S in (0, 1):
            for setting in OF_PAPER:
                values = paired(study, setting, row_of_paper(name, S), "dapo")
                cells.append(mean_interval(values) if len(values) > 1 and name != "dapo" else "")
        lines.append(cells)
    header = [f"S = {S}, {setting}" for S in (0, 1) for setting in OF_PAPER]
    print_table(["row", "paper", *header], lines)
    for S in (0, 1):
        names, scores, toys = paper_and_toy(study, S)
        if len(names) > 2:
            rho, p = spearman(scores, toys), permutation_p(scores, toys)
            print(f"S = {S}: rank correlation {rho:.2f} over {len(names)} rows, p {p:.2g}")
    print()


# ---- pictures ------------------------------------------------------------------------------------


def draw_dose(study: Study, path: Path) -> None:
    """DelTA minus DAPO against the mean cosine of the states that DelTA sees; a panel a setting."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = figure.subplots(1, len(SECONDARY), sharey=True)
    for axes, setting in zip(panels, SECONDARY, strict=True):
        own = np.mean([run["hidden_cosine"] for run in study[setting, "dapo"].values()])
        for K, colour, line in ((1, "#0072B2", "-o"), (0, "#D55E00", "-s")):
            points = []
            for dose in DOSES:
                values = paired(study, setting, dose if K else f"{dose}, K = 0", "dapo")
                if len(values) > 1:
                    S2 = np.inf if dose == "scalar" else float(dose.split()[-1]) ** 2
                    cosine = 1.0 if dose == "scalar" else (own + S2) / (1 + S2)
                    points.append((cosine, values.mean(), half_width(values)))
            x, y, error = zip(*points, strict=True)
            label = f"DelTA, K = {K}"
            axes.errorbar(x, y, error, fmt=line, color=colour, capsize=2, label=label)
        axes.axvspan(*LARGE_MODELS, color="0.88", label="large models, published")
        axes.axhline(0, color="0.3", linewidth=1)
        axes.set_title(setting)
        axes.set_xlabel("mean cosine of two tokens' states")
    panels[0].set_ylabel("DelTA minus DAPO, mean reward")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=150)


def draw_paper(study: Study, path: Path) -> None:
    """The paper's score of each row against the toy's difference from DAPO, at S = 0 and S = 1."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, S in zip(panels, (0, 1), strict=True):
        names, scores, toys = paper_and_toy(study, S)
        shown = toys.clip(min=LEFTMOST)
        axes.scatter(shown, scores, color="#0072B2")
        for i, (x, y) in enumerate(zip(shown, scores, strict=True)):
            name = names[i] if toys[i] > LEFTMOST else f"{names[i]}: {toys[i]:.2f}"
            distances = np.abs(scores - y)
            distances[i] = np.inf
            nearest = shown[distances.argmin()]  # in height
            at_left = shown.min() < x < nearest
            side = {"xytext": (-5, -3), "ha": "right"} if at_left else {"xytext": (5, -3)}
            axes.annotate(name, (x, y), textcoords="offset points", fontsize=8, **side)
        axes.margins(x=0.3)
        axes.locator_params(axis="x", nbins=6)
        rho = spearman(scores, toys)
        axes.set_title(f"S = {S}: rank correlation {rho:.2f}")
        axes.set_xlabel("toy: mean reward minus DAPO's")
    panels[0].set_ylabel("paper, 8B: average of four benchmarks")
    figure.savefig(path, dpi=150)


# ---- all of it -----------------------------------------------------------------------------------


def print_all(lines: list[dict], folder: Path) -> None:
    """Print the protocol's tables; draw direction.png and direction_rows.png in `folder`."""
    study = study_of(lines)
    rising = print_settings(study)
    print(f"not flat: {', '.join(rising)}\n")

    def over(a: str, b: str, settings=PRIMARY, outcome: Callable = mean_reward) -> dict:
        return {setting: paired(study, setting, a, b, outcome) for setting in settings}

    first = print_differences("S = 1 minus dapo", over("S = 1", "dapo", rising))
    second = print_differences("S = 1 minus S = 0", over("S = 1", "S = 0", rising))
    print_verdict(first, second, study)
    print_differences("S = 0 minus dapo", over("S = 0", "dapo"))
    flat = [setting for setting in PRIMARY if setting not in rising]
    for a, b in (("S = 1", "dapo"), ("S = 1", "S = 0")):
        print_differences(f"flat: {a} minus {b}", over(a, b, flat))

    print_differences("K = 1 minus K = 0 at S = 1", over("S = 1", "S = 1, K = 0"))
    print_differences("model minus its dapo", over("model", "model, dapo"))
    print_differences("bottom minus random half, S = 1", over("bottom half, S = 1", "random half"))
    print_differences("centred minus S = 1", over("centred", "S = 1"))
    print_differences("dose: minus dapo", of_doses(study))
    print_equivalence(study, [("scalar", "S = 1"), ("rule", "S = 1"), ("side means", "S = 1")])
    print_rows(study)

    for name, outcome in OUTCOMES.items():
        for b in ("dapo", "S = 0"):
            print_differences(f"{name}: S = 1 minus {b}", over("S = 1", b, outcome=outcome))
    for kind in ("connectives", "results"):
        found = {
            setting: entropy_at_equal_reward(study, setting, "S = 1", "dapo", kind)
            for setting in PRIMARY
            if (setting, "S = 1") in study
        }
        print_differences(f"entropy of {kind} at equal reward: S = 1 minus dapo", found)
    for name, outcome in ({"mean reward": mean_reward} | OUTCOMES).items():
        for a, b in (("S = 0", "dapo"), ("S = 1", "dapo")):
            print_differences(f"110 steps, {name}: {a} minus {b}", over(a, b, LONGER, outcome))
    print_paper(study)
    draw_dose(study, folder / "direction.png")
    draw_paper(study, folder / "direction_rows.png")


def direction(args) -> None:
    """Train the planned runs that the CSV lacks, print the tables and draw the pictures."""
    path = Path(args.csv)
    print_all(complete(path), path.parent)
