"""benchmarks/training.py, on runs whose table can be computed by hand."""

import json
import re

import pytest

from benchmarks import training
from benchmarks.__main__ import main
from benchmarks.tables import read_csv

# Mean rewards by row and rate; seeds 1 to 3. dapo is best at 2 on every choice of two seeds, mine
# at 1 without seed 3 and at 2 without seed 1 or 2.
OUTCOMES = {
    ("dapo", 1): (0.1, 0.1, 0.1),
    ("dapo", 2): (0.4, 0.5, 0.6),
    ("mine", 1): (0.4, 0.6, 0.1),
    ("mine", 2): (0.3, 0.4, 0.9),
}


def csv_of(path, outcomes):
    """Runs of two steps, whose rewards are 0.1 below and above the outcome."""
    lines = [",".join(training.COLUMNS)]
    for (row, rate), values in outcomes.items():
        for seed, x in enumerate(values, 1):
            lines.append(f"same,{row},{rate},{seed},{x / 2},{x - 0.1:.4f} {x + 0.1:.4f}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_row_runs_at_the_rate_that_is_best_on_the_other_seeds(tmp_path, capsys):
    main(["training", "--csv", csv_of(tmp_path / "own.csv", OUTCOMES)])
    said = capsys.readouterr().out
    # At this rate -0.1, -0.1 and 0.3 beside dapo: deviation 0.2309 again.
    assert "| mine | 2 | 0.533 | 0.267 | 0.033 ± 0.574 |" in said
    assert "| dapo | 2 2 2 | 0.500 | 0.250 |  |  |  |" in said
    # mine has 0.3, 0.4 (at 2) and 0.1 (at 1): -0.1, -0.1 and -0.5 beside dapo. Mean -0.2333,
    # deviation 0.2309, so ± 4.3027 x 0.1333; t is -1.75 with two degrees of freedom, p 0.2222.
    # dapo's outcome is 0.1 above that of its first step: 0.1 is a step, half of its run.
    assert "| mine | 2 2 1 | 0.267 | 0.133 | -0.233 ± 0.574 | 0.22 | -117 ± 287 |" in said


def test_a_row_that_is_dapo_and_a_reward_that_falls(tmp_path, capsys):
    """p is 1; a step that lowers the outcome is no unit."""
    same = {key: OUTCOMES["dapo", key[1]] for key in OUTCOMES}
    path = tmp_path / "own.csv"
    csv_of(path, same)
    main(["training", "--csv", str(path)])
    assert "| 0.000 ± 0.000 | 1 | 0 ± 0 |" in capsys.readouterr().out
    path.write_text(re.sub(r"([-\d.]+) ([-\d.]+)$", r"\2 \1", path.read_text(), flags=re.MULTILINE))
    main(["training", "--csv", str(path)])
    assert "| 0.000 ± 0.000 | 1 |  |" in capsys.readouterr().out


def test_seeds_count_only_if_all_rows_and_rates_have_them(tmp_path, capsys):
    more = OUTCOMES | {("mine", 1): (0.4, 0.6)}
    with pytest.raises(SystemExit) as ended:
        main(["training", "--csv", csv_of(tmp_path / "own.csv", more)])
    said = capsys.readouterr()
    assert ended.value.code == 2 and "3 seeds that all" in said.err
    assert "seeds [1, 2]; not of all rows and rates: [3]" in said.out


def test_finished_runs_are_added_once_and_compared_with_runs_of_the_same_flags(tmp_path, capsys):
    path, run = csv_of(tmp_path / "own.csv", OUTCOMES), tmp_path / "run"
    run.mkdir()
    config = {"method": "delta", "proxy": "scalar", "delta_variant": "full", "K": 1}
    config |= {"select": "none", "lr": 1.0, "seed": 1, "steps": 2, "output_dir": str(run)}
    (run / "config.json").write_text(json.dumps(config))
    steps = [{"step": 0, "eval_accuracy": 0.1}, {"step": 1, "reward": 0.25}]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)) + "\n")

    def refusal():
        with pytest.raises(SystemExit) as ended:
            main(["training", "--csv", path, str(run)])
        assert ended.value.code == 2
        return capsys.readouterr()

    assert "is not finished" in refusal().err
    steps.append({"step": 2, "reward": 0.5, "eval_accuracy": 0.75})
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)) + "\n")
    said = refusal()  # it is added, but there is nothing to compare it with
    assert "| 0.267 |" in said.out and "too few runs yet" in said.err
    last = read_csv(tmp_path / "own.csv", training.COLUMNS).iloc[-1]
    assert list(last[1:]) == ["delta scalar", 1.0, 1, 0.75, "0.2500 0.5000"]
    assert "name each run once" in refusal().err

    before = training.line_of(run)
    other = {"seed": 2, "lr": 3.0, "proxy": "row", "save_every": 7}
    (run / "config.json").write_text(json.dumps(config | other))
    assert training.line_of(run)["flags"] == before["flags"]
    (run / "config.json").write_text(json.dumps(config | {"steps": 1}))
    assert training.line_of(run)["flags"] != before["flags"]
