"""Draws the gains of results/gain.csv: a panel for each policy, a point for each row.

python -m benchmarks.gain_picture POLICY ... --output FILE     # POLICY: its name in the CSV
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.gain import COLUMNS, above_dapo, values_of
from benchmarks.statistics import critical_t
from benchmarks.tables import read_csv
from infra.errors import UserError, one_line_endings

ROWS = {  # row -> its label; published names first
    "delta": "DelTA",
    "delta, K = 0": "DelTA, no refinement (K = 0)",
    "scalar": "DelTA on 1 - p alone (scalar)",
    "tokens only": "only which tokens of a side",
    "sides only": "only right side against wrong",
    "two constants": "right 1.1, wrong 0.9",
    "inverse constants": "right 0.9, wrong 1.1",
    "unsure, sure": "unsure if right, sure if wrong",
    "random": "random weights (control)",
}


def draw(policies: dict[str, dict], path: Path) -> None:
    """Draw gains with Adam and their 95 % intervals. policies: name -> values of its lines."""
    figure = Figure(figsize=(7, 0.4 + 0.31 * len(ROWS)), layout="constrained")
    panels = figure.subplots(1, len(policies), sharey=True, squeeze=False)[0]
    for axes, (name, values) in zip(panels, policies.items(), strict=True):
        for y, row in enumerate(ROWS):
            gain, error = above_dapo(values, "adam", row)
            reach = critical_t(0.05, len(values["adam"][row]) - 2) * error
            inside = "black" if abs(gain) > reach else "white"  # white: the interval contains 0
            axes.errorbar(gain, y, xerr=reach, fmt="o", ms=5, capsize=3, color="black", mfc=inside)
        axes.axvline(0, color="black", lw=0.8)
        axes.set_title(name.replace(", ", ",\n"), size=9.5)
        axes.grid(axis="x", alpha=0.3)
        axes.tick_params(labelsize=9)
    panels[0].set_yticks(range(len(ROWS)), ROWS.values())
    panels[0].invert_yaxis()
    note = "rise of expected reward by one step, % above DAPO's (95 %; scales differ)"
    figure.supxlabel(note, size=9.5)
    figure.savefig(path, dpi=200)


def main(argv: list[str] | None = None) -> None:
    lines = RawDescriptionHelpFormatter
    parser = ArgumentParser(
        "python -m benchmarks.gain_picture", description=__doc__, formatter_class=lines
    )
    parser.add_argument("policies", nargs="+", metavar="POLICY")
    parser.add_argument("--csv", type=Path, default=Path("results/gain.csv"))
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    with one_line_endings("benchmarks.gain_picture"):
        known = dict(list(read_csv(args.csv, COLUMNS).groupby("policy", sort=False)))
        for policy in args.policies:
            if policy not in known:
                raise UserError(f"{args.csv} has no policy {policy}: it has {'; '.join(known)}")
        draw({policy: values_of(known[policy]) for policy in args.policies}, args.output)
    print(f"saved as {args.output}")


if __name__ == "__main__":
    main()
