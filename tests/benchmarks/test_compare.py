"""Tests benchmarks/compare.py: runs of the toy, tables computed by hand, and those in results/."""

import json

import pandas as pd
import pytest
from hashed_rewards import rewarded
from toy_runs import PROBLEMS, ROOT, SMALL

from benchmarks import compare as compare_module
from benchmarks.__main__ import main
from benchmarks.compare import Training

# (row, rate) -> mean rewards of seeds 1 to 3. On any two seeds, dapo is best at rate 2. delta is
# best at 1 without seed 3, and at 2 without seed 1 or 2.
REWARDS = {
    ("dapo", 1.0): (0.1, 0.1, 0.1),
    ("dapo", 2.0): (0.4, 0.5, 0.6),
    ("delta", 1.0): (0.4, 0.6, 0.1),
    ("delta", 2.0): (0.3, 0.4, 0.9),
}


def written(path, rewards=REWARDS) -> str:
    """A CSV of these runs."""
    lines = [
        f"{row},{rate},{seed},{x}"
        for (row, rate), values in rewards.items()
        for seed, x in enumerate(values, 1)
    ]
    path.write_text("\n".join(["row,rate,seed,reward", *lines]) + "\n")
    return str(path)


def printed(capsys, *flags) -> str:
    main(["compare", *map(str, flags)])
    return capsys.readouterr().out


def refusal(capsys, *flags) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, flags)])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_runs_are_trained_once_and_their_rows_are_named_by_what_differs(tmp_path, capsys):
    small = [*SMALL, "--mini-batch", "8", "--steps", "1"]
    command = [tmp_path / "out", "--rows", "dapo", "delta --K 0", "--seeds", "1-2", *small]
    with rewarded():
        said = printed(capsys, *command, "--light", "--csv", tmp_path / "runs.csv")
    assert "| delta --K 0 1e-4 - dapo 1e-4 |" in said and PROBLEMS not in said
    folder = tmp_path / "out" / "delta-K-0-2"
    assert (folder / "metrics.jsonl").exists() and not (folder / "model").exists()
    again = printed(capsys, *command)  # nothing is left to train
    assert "step " not in again and said.endswith(again)
    table = again[again.index("| row") :]
    assert printed(capsys, tmp_path / "out").endswith(table)
    assert printed(capsys, tmp_path / "runs.csv").endswith(table)
    assert "another --temperature" in refusal(capsys, *command, "--temperature", "0.9")
    assert "invalid choice" in refusal(capsys, tmp_path / "new", "--rows", "dapo", "none")
    assert not (tmp_path / "new").exists()
    (folder / "compare.json").unlink()  # as after a kill between the last step and the end
    assert "seeds: [1]; incomplete: [2]" in main_and_refusal(capsys, tmp_path / "out")


def main_and_refusal(capsys, *flags) -> str:
    with pytest.raises(SystemExit):
        main(["compare", *map(str, flags)])
    return capsys.readouterr().out


def test_a_row_runs_at_the_rate_that_is_best_on_other_seeds(tmp_path, capsys):
    said = printed(capsys, written(tmp_path / "runs.csv"))
    # At rate 2 delta minus dapo is -0.1, -0.1 and 0.3: the mean is 0.0333, the deviation 0.2309,
    # and ± is 4.3027 x 0.1333.
    assert "| delta 2e+0 - dapo 2e+0 | 0.033 ± 0.574 |" in said
    assert "dapo: its rates by seed are 2e+0 2e+0 2e+0" in said
    assert "delta: its rates by seed are 2e+0 2e+0 1e+0" in said
    # There delta has 0.3, 0.4 and 0.1, so minus dapo -0.1, -0.1 and -0.5; t is -1.75, p 0.2222.
    assert "| delta at its rates - dapo at its rates | -0.233 ± 0.574 | 0.22 |" in said


def test_tuning_seeds_choose_rates_and_count_for_nothing_else(tmp_path, capsys):
    said = printed(capsys, written(tmp_path / "runs.csv"), "--tune", "1")
    assert "seeds: [2, 3]" in said
    assert "delta: 1e+0 0.4000, 2e+0 0.3000" in said  # on seed 1 alone, where 1 is best
    assert "| delta at its rates | 2 | 0.350 |" in said


BEST = {"dapo": 3.4, "delta": 2.0}  # the reward falls with the rate's distance from it


@pytest.fixture
def trained(monkeypatch) -> list[tuple]:
    """The runs that compare trains, as (row, rate, seed); none is really trained."""
    runs = []

    def train(self, row, rate, seed):
        runs.append((row, float(rate), seed))
        return {"rewards": [-abs(float(rate) - BEST[row])]}

    monkeypatch.setattr(Training, "train", train)
    monkeypatch.setattr(compare_module, "from_folders", lambda out: pd.DataFrame({"row": []}))
    monkeypatch.setattr(compare_module, "print_tables", lambda *args: None)
    return runs


RATES = ["1.4", "2", "2.4", "2.8", "3.4", "4", "4.8"]
TUNED = ["--rows", "dapo", "delta", "--rates", *RATES, "--tune", "1-2", "--seeds", "7-8"]


def test_no_counted_seed_is_trained_at_a_rate_that_it_does_not_need(tmp_path, trained, capsys):
    printed(capsys, tmp_path, *TUNED)
    for row, best in BEST.items():
        own = [run for run in trained if run[0] == row]
        assert {run[1:] for run in own if run[2] < 7} == {
            (float(x), y) for x in RATES for y in (1, 2)
        }
        assert [run[1:] for run in own if run[2] >= 7] == [(best, 7), (best, 8)]


def test_climbing_goes_on_only_from_an_edge(tmp_path, trained, capsys):
    printed(capsys, tmp_path, *TUNED, "--climb")
    rates = {
        row: [x[1] for x in dict.fromkeys(trained) if x[0] == row and x[2] == 1] for row in BEST
    }
    assert rates == {"dapo": [2.4, 2.8, 3.4, 4.0], "delta": [2.4, 2.8, 3.4, 2.0, 1.4]}
    assert [x for x in trained if x[2] == 8] == [("dapo", 3.4, 8), ("delta", 2.0, 8)]


def test_contrasts_name_the_runs_that_count(tmp_path, trained, capsys):
    pairs = "delta 2 - dapo 2", "delta 2 - dapo at its rates"
    printed(capsys, tmp_path, *TUNED, "--contrasts", *pairs)
    assert [x for x in trained if x[2] == 7] == [("delta", 2, 7), ("dapo", 2, 7), ("dapo", 3.4, 7)]


def test_a_run_is_measured_once_and_keeps_its_curves(tmp_path, capsys):
    small = [*SMALL, "--mini-batch", "8", "--steps", "2", "--rows", "dapo", "--seeds", "1-2"]
    command = [tmp_path / "out", *small, "--measure", str(tmp_path / "own.py") + ":last_letter"]
    own = "def last_letter(cfg):\n    return {'digit': cfg.seed + 0.5}\n"
    (tmp_path / "own.py").write_text(own)
    with rewarded():
        printed(capsys, *command, "--csv", tmp_path / "runs.csv")
    runs = pd.read_csv(tmp_path / "runs.csv")
    assert runs["digit"].tolist() == [1.5, 2.5] and (runs["commit"].str.len() >= 12).all()
    for seed, curve in zip(runs["seed"], runs["rewards"], strict=True):
        lines = (tmp_path / "out" / f"dapo-{seed}" / "metrics.jsonl").read_text().splitlines()
        logged = [x["reward"] for x in map(json.loads, lines) if x["step"] > 0]
        assert [float(x) for x in curve.split()] == pytest.approx(logged, rel=1e-5)
    assert "no such function" in refusal(capsys, tmp_path, "--measure", "benchmarks.compare:none")


def test_contrasts_are_the_family_of_holms_correction(tmp_path, capsys):
    pair = "delta 2e+0 - dapo 1e+0"
    said = printed(capsys, written(tmp_path / "runs.csv"), "--contrasts", pair)
    assert f"| {pair} | 0.433 ± 0.799 | 0.14 |" in said
    assert "a row is one of dapo 1e+0" in refusal(capsys, tmp_path / "runs.csv", "--contrasts", "x")


def test_seeds_count_only_if_all_rows_have_them(tmp_path, capsys):
    runs = written(tmp_path / "runs.csv", REWARDS | {("delta", 1.0): (0.4, 0.6)})
    assert "seeds: [1, 2]; incomplete: [3]" in printed(capsys, runs)
    assert "seeds: [1, 2, 3]; incomplete: []" in printed(capsys, written(tmp_path / "runs.csv"))
    twice = (tmp_path / "runs.csv").read_text()
    (tmp_path / "runs.csv").write_text(twice + twice.splitlines()[-1] + "\n")
    assert "same row, rate and seed" in refusal(capsys, runs)


def test_a_row_that_is_the_reference_by_another_name(tmp_path, capsys):
    same = {key: REWARDS["dapo", key[1]] for key in REWARDS}
    said = printed(capsys, written(tmp_path / "runs.csv", same))
    assert "| delta at its rates - dapo at its rates | 0.000 ± 0.000 | 1 |" in said


def test_the_published_tables(capsys):
    pairs = "delta 5e-7 - dapo 5e-7", "delta 5e-7 - dapo 6e-7"
    said = printed(capsys, ROOT / "results/races.csv", "--contrasts", *pairs)
    assert f"| {pairs[0]} | 0.039 ± 0.018 | -0.011 ± 0.028 |" in said and "| 0.00061 |" in said
    assert f"| {pairs[1]} | 0.010 ± 0.017 | 0.003 ± 0.027 |" in said and "| 0.23 |" in said
    said = printed(capsys, ROOT / "results/training.csv")
    assert "| delta scalar 2e-6 - dapo 2e-6 | 0.029 ± 0.084 |" in said
    assert "| unsure_sure at its rates - dapo at its rates | -0.054 ± 0.072 |" in said
    three = "delta 5e-7", "dapo 5e-7", "dapo 6e-7"
    line = printed(capsys, ROOT / "results/races.csv", "--line", "entropy", *three)
    assert "line of delta 5e-7, dapo 5e-7, dapo 6e-7: -0.036 ± 0.045 (15 seeds)" in line


def test_a_share_of_a_lead_by_hand(tmp_path, capsys):
    """Over three seeds A's lead is 1, 2, 3 and C's is 4, 4, 4: shares 1/2; 5/8, 1/2, 3/8."""
    rewards = {("b", 1.0): (1, 2, 3), ("a", 1.0): (2, 4, 6), ("c", 1.0): (5, 6, 7)}
    said = printed(
        capsys, written(tmp_path / "runs.csv", rewards), "--share", "a 1e+0", "b 1e+0", "c 1e+0"
    )
    # The three values' deviation (n in the denominator) is 0.1021, times sqrt(2) x 4.3027.
    assert "share of a 1e+0, b 1e+0, c 1e+0: 0.500 ± 0.621 (3 seeds)" in said
    assert "a row is one of" in refusal(capsys, tmp_path / "runs.csv", "--share", "a", "b", "c")
