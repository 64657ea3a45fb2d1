"""The numbers in RESULTS.md and docs/results/ match the CSV files in results/."""

import re
import shutil

import pytest
from conftest import ROOT

import bench
import studies.running
from studies import truth
from studies.credit_study import lines_before
from studies.credit_tables import print_correlations, print_tables
from studies.runs import finished_runs

README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "RESULTS.md").read_text()


def table_rows(text: str) -> list[list[str]]:
    """The cells of a page's tables, row by row."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_results_table_matches_the_long_tables():
    """Row by row: flags, difference from DAPO, seeds, p."""
    page = (ROOT / "docs/results/training.md").read_text()
    pages = table_rows(page.split("## Three methods")[0])
    flags = {row[0]: row[1] for row in pages if len(row) == 6}
    differences = {row[0]: row[1:4] for row in pages if len(row) == 5}
    rows = table_rows(RESULTS)[2:]  # excluding the header
    assert len(rows) == 15
    for name, its_flags, _, *numbers in rows:
        assert its_flags == flags[name]
        assert numbers == differences[name]


def intervals(text: str) -> set[str]:
    """Every interval such as `0.013 ± 0.008` on a page, without signs."""
    return set(re.findall(r"\d\.\d+ ± \d\.\d+", " ".join(text.split())))


def test_every_interval_on_the_front_pages_is_on_a_results_page():
    long = set()
    for page in (ROOT / "docs/results").glob("*.md"):
        long |= intervals(page.read_text())
    withdrawn = {"0.0103 ± 0.0102", "0.003 ± 0.005"}  # measured outside this repository
    assert withdrawn < intervals(RESULTS.split("**Withdrawn")[1])
    assert intervals(RESULTS) <= long | withdrawn
    assert intervals(README) <= intervals(RESULTS)


def printed(text: str) -> set[str]:
    """The lines with numbers in a study's output or in a page."""
    lines = [line.replace("\\", "").removeprefix("- ") for line in text.splitlines()]
    return {line for line in lines if line.startswith("|") or "±" in line}


@pytest.mark.parametrize(
    "study, page",
    [
        ("methods", "docs/results/training.md"),
        ("seeds", "docs/results/training.md"),
        ("make_train", "docs/results/training.md"),
        ("curves", "docs/results/training.md"),
        ("confirm", "docs/results/confirmation.md"),
        ("noise", "docs/results/noise.md"),
        ("surprise", "docs/results/surprise.md"),
        ("learn", "docs/results/learn.md"),
        ("longer", "docs/results/surprise.md"),
        ("bases", "toy/bases/README.md"),
        ("make_train", "toy/bases/README.md"),
    ],
)
def test_a_page_matches_the_studys_output_for_its_csv(study, page, tmp_path, monkeypatch, capsys):
    """The CSV has every run of the study, so nothing is trained."""
    monkeypatch.chdir(ROOT)  # studies look for results/methods.csv here
    monkeypatch.setattr(studies.running, "ProcessPoolExecutor", None)
    copy = tmp_path / f"{study}.csv"
    shutil.copy(ROOT / "results" / copy.name, copy)
    bench.main([study, "--csv", str(copy)])
    lines = printed(capsys.readouterr().out)
    assert len(lines) > 4
    assert lines <= printed((ROOT / page).read_text())


def test_the_single_token_pages_match_their_csv(capsys):
    for page in ("credit", "truth"):
        if page == "credit":
            measured = lines_before(ROOT / "results/credit.csv")
            print_tables(measured)
            print_correlations(measured, finished_runs(ROOT / "results/methods.csv"))
        else:
            truth.print_agreement(truth.read_truth(ROOT / "results/truth.csv"))
        lines = {line for line in printed(capsys.readouterr().out) if line.startswith("|")}
        assert len(lines) > 10
        assert lines <= printed((ROOT / f"docs/results/{page}.md").read_text())


def test_dapos_gains_on_the_bases_match_their_csv():
    page = (ROOT / "docs/results/surprise.md").read_text()
    lines = page.partition("## All numbers")[2].splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("| DAPO at |"))
    end = lines.index("", start)
    table = lines[start:end]
    assert len(table) == 2 + 6
    assert "\n".join(table) in (ROOT / "toy/bases/README.md").read_text()
