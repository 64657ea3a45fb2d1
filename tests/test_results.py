"""The numbers in RESULTS.md and docs/results/ match the CSV files in results/."""

import csv
import re
import shutil

import numpy as np
from conftest import ROOT

from benchmarks import mean
from benchmarks.__main__ import main
from benchmarks.comparisons import counted, over_seeds, paired
from benchmarks.runs import finished_runs
from benchmarks.statistics import half_width, holm, mean_interval, p_value

RESULTS = (ROOT / "RESULTS.md").read_text()
PAGES = {page.stem: page.read_text() for page in (ROOT / "docs/results").glob("*.md")}


def table_rows(text: str) -> list[list[str]]:
    """The cells of a page's tables, row by row, without stars."""
    lines = [line.replace("\\", "").replace("*", "") for line in text.splitlines()]
    return [[x.strip() for x in line.strip("|").split(" | ")] for line in lines if line[:1] == "|"]


def intervals(text: str) -> set[str]:
    """Every interval such as `0.013 ± 0.008` on a page, without signs."""
    return set(re.findall(r"\d\.\d+ ± \d\.\d+", " ".join(text.split())))


def compared(capsys, name: str, minus: str = "dapo") -> dict:
    """(setting, row) -> the interval that `compare` prints."""
    main(["compare", "--csv", str(ROOT / f"results/{name}.csv"), "--minus", minus])
    found = {}
    setting = ""
    for cells in table_rows(capsys.readouterr().out):
        if match := re.match(rf"(.*), \d+ seeds: minus {minus}", cells[0]):
            setting = match[1]
        elif len(cells) == 5 and setting:
            found[setting, cells[0]] = cells[1:4]
    return found


def test_there_are_at_most_seven_pages():
    assert len(PAGES) <= 7


def test_the_table_of_training_matches_both_studies(capsys):
    sharpen, learn = compared(capsys, "methods"), compared(capsys, "learn")
    rows = [cells for cells in table_rows(PAGES["training"]) if len(cells) == 8][1:]
    assert len(rows) == 34
    for name, _, _, *numbers, of_learn, _ in rows:
        if ("k12", name) in sharpen:
            assert numbers == sharpen["k12", name]
        assert of_learn == learn["learn, filler 4", name][0]


def test_the_table_of_surprise_matches_its_csv(capsys):
    columns = [("surprise", "dapo"), ("surprise", "delta"), ("surprise", "no centroids")]
    columns += [("delta", "dapo"), ("no centroids", "dapo"), ("oracle in range", "dapo")]
    for column, (row, minus) in enumerate(columns, start=2):
        found = compared(capsys, "surprise", minus)
        lines = [x for x in table_rows(PAGES["surprise"]) if len(x) == 8 and (x[0], row) in found]
        assert len(lines) == 6
        for cells in lines:
            assert cells[column] == found[cells[0], row][0]


def test_the_table_under_noise_matches_its_csv():
    """A star: Holm's p over all 24 differences is at most 0.05."""
    of = counted(finished_runs(ROOT / "results/noise.csv"))
    rows = ("delta", "delta, K = 0", "oracle in range", "oracle")
    gains = {(x, row): paired(of, x, row, "dapo") for x, row in of if row in rows}
    p = holm({name: p_value(values) for name, values in gains.items()})
    for setting in {setting for setting, _ in of}:
        cells = [setting, mean_interval(over_seeds(of, setting, "dapo"))]
        for name in [(setting, row) for row in rows]:
            cells.append(mean_interval(gains[name]) + "*" * (p[name] <= 0.05))
        assert f"| {' | '.join(cells)} |" in PAGES["training"]
    assert len(p) == 24


def test_the_confirmation_matches_its_csv(capsys):
    page = {cells[0]: cells[1:] for cells in table_rows(PAGES["training"]) if len(cells) == 5}
    names = {"k12": "the same task", "k12, another base": "another base model"}
    names |= {"k16": "16 operations", "k5, filler 4": "5 operations, four connectives"}
    dapo, delta = compared(capsys, "confirm"), compared(capsys, "confirm", "delta")
    for setting, name in names.items():
        best = "delta, K = 0"
        found = [dapo[setting, best], delta[setting, best]]
        found += [dapo[setting, "delta"], dapo[setting, "oracle in range"]]
        assert page[name] == [numbers[0] for numbers in found]


def test_the_page_of_credit_matches_its_files(capsys):
    with open(ROOT / "results/credit.csv", newline="") as file:
        lines = list(csv.DictReader(file))

    def of(row: str, column: str) -> np.ndarray:
        return np.array([float(line[column]) for line in lines if line["row"] == row])

    main(["credit", "--csv", str(ROOT / "results/truth.csv")])
    printed = table_rows(capsys.readouterr().out)
    signed = {x[0]: [f"{y:.5}" for y in x[1:]] for x in printed if len(x) == 3}
    rows = [x for x in table_rows(PAGES["credit"]) if len(x) == 9][1:]
    assert len(rows) == 19
    for row, *cells in rows:
        assert cells[:2] == [f"{of(row, name).mean():.3f}" for name in ("auc_pos", "auc_neg")]
        assert cells[2:4] == signed[row]
        for cell, column in zip(cells[5:7], ("cosine", "cosine_sign"), strict=True):
            gain = of(row, column) - of("dapo", column)
            assert cell == f"{gain.mean():+.3f} ± {half_width(gain):.3f}"
    trained = counted(finished_runs(ROOT / "results/methods.csv"))
    both = [row for _, row in trained if row in {line["row"] for line in lines}]
    rewards = [paired(trained, "k12", row, "dapo").mean() for row in both]
    cosines = ([of(row, name).mean() for row in both] for name in ("cosine_sign", "cosine"))
    sign, update = (f"{np.corrcoef(cosine, rewards)[0, 1]:.2f}" for cosine in cosines)
    assert len(both) == 15 and f"(r {sign}; {update} for the update itself)" in RESULTS
    assert f"at r {sign} and with the second at {update};" in PAGES["credit"]
    marks = [x for x in printed if len(x) == 7]
    assert len(marks) == 11 and all(x in table_rows(PAGES["credit"]) for x in marks)


def test_the_page_of_the_mean_matches_its_csv(tmp_path, capsys):
    """Its columns have the labels that `mean` prints; stars mark planned tests with p <= 0.05."""
    copy = shutil.copy(ROOT / "results/mean.csv", tmp_path)  # the picture is drawn beside it
    main(["mean", "--csv", str(copy)])
    printed = {}
    for cells in table_rows(capsys.readouterr().out):
        if len(cells) == 5 and cells[1].startswith("difference"):
            label = cells[0]
        elif len(cells) == 5:
            printed[label, cells[0]] = cells[1], float(cells[3])

    planned = [f"{a} minus {b}" for a, b in (*mean.PRIMARY, *mean.SECONDARY)]
    described = {f"{row} minus dapo" for row in mean.ALL_ROWS if row != "dapo"} - set(planned)
    found = []
    labels = ()
    for line in PAGES["mean"].replace("\\*", "*").splitlines():
        first, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            labels = ()
        elif cells and " minus " in cells[0]:
            labels = cells
        elif cells and labels:
            for label, cell in zip(labels, cells, strict=True):
                interval, p = printed[label, first]
                assert cell == interval + "*" * (p <= 0.05 and label not in described)
                found.append(label)
    assert set(planned) | described <= set(found)
    assert len(found) == 6 * 5 + 6 * 6 + 6 * 4 + 5 * 3


def test_make_train_matches_its_csv(capsys):
    main(["make_train", "--csv", str(ROOT / "results/make_train.csv")])
    [*_, line] = capsys.readouterr().out.strip().splitlines()
    assert line in (ROOT / "toy/README.md").read_text()


def test_the_results_table_matches_the_page_of_training():
    """Row by row: flags, difference from DAPO, seeds, p."""
    page = {x[0]: [x[1], *x[3:6]] for x in table_rows(PAGES["training"]) if len(x) == 8}
    rows = table_rows(RESULTS)[2:]
    assert len(rows) == 15
    for name, flags, _, *numbers in rows:
        assert [flags, *numbers] == page[name]


def test_every_interval_on_the_front_pages_is_on_a_results_page():
    long = set().union(*(intervals(page) for page in PAGES.values()))
    withdrawn = {"0.0103 ± 0.0102", "0.003 ± 0.005"}  # measured outside this repository
    assert intervals(RESULTS) <= long | withdrawn
    assert intervals((ROOT / "README.md").read_text()) <= intervals(RESULTS)
