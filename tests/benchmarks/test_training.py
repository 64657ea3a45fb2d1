"""Tests benchmarks/training.py, on runs whose table can be computed by hand."""

import json
from pathlib import Path

import pytest

from benchmarks import training
from benchmarks.__main__ import main

# (row, rate) -> mean rewards of seeds 1 to 3. On any two seeds, dapo is best at rate 2. `mine` is
# best at 1 without seed 3, and at 2 without seed 1 or 2.
OUTCOMES = {
    ("dapo", 1): (0.1, 0.1, 0.1),
    ("dapo", 2): (0.4, 0.5, 0.6),
    ("mine", 1): (0.4, 0.6, 0.1),
    ("mine", 2): (0.3, 0.4, 0.9),
}


def runs_of(folder, outcomes, turn=1) -> list[str]:
    """Folders of runs of two steps. The rewards are 0.1 below and 0.1 above the outcome."""
    found = []
    for (row, rate), values in outcomes.items():
        for seed, x in enumerate(values, 1):
            found.append(str(folder / f"{row}-{rate}-{seed}"))
            rewards = (x - 0.1, x + 0.1)[::turn]
            run_of(Path(found[-1]), rewards, x / 2, method=row, lr=rate, seed=seed)
    return found


def run_of(folder, rewards, accuracy, **changed) -> None:
    config = {"proxy": "row", "delta_variant": "full", "K": 1, "select": "none", "steps": 2}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | changed))
    steps = [{"step": i, "reward": x} for i, x in enumerate(rewards, 1)]
    steps[-1]["eval_accuracy"] = accuracy
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)) + "\n")


def test_a_row_runs_at_the_rate_that_is_best_on_the_other_seeds(tmp_path, capsys):
    main(["training", *runs_of(tmp_path, OUTCOMES)])
    said = capsys.readouterr().out
    # At this rate mine minus dapo is -0.1, -0.1 and 0.3; the deviation is 0.2309 again.
    assert "| mine | 2 | 0.533 | 0.267 | 0.033 ± 0.574 |" in said
    assert "| dapo | 2 2 2 | 0.500 | 0.250 |  |  |  |" in said
    # mine has 0.3, 0.4 (at 2) and 0.1 (at 1), so minus dapo it has -0.1, -0.1 and -0.5. The mean is
    # -0.2333, the deviation 0.2309, and ± is 4.3027 x 0.1333. With t = -1.75 and two degrees of
    # freedom, p is 0.2222. dapo's second step raises its outcome by 0.1: that is half of its run.
    assert "| mine | 2 2 1 | 0.267 | 0.133 | -0.233 ± 0.574 | 0.22 | -117 ± 287 |" in said


def test_a_row_that_is_dapo_and_a_reward_that_falls(tmp_path, capsys):
    """p is 1 for dapo itself, and a step that lowers the outcome is no unit."""
    same = {key: OUTCOMES["dapo", key[1]] for key in OUTCOMES}
    main(["training", *runs_of(tmp_path, same)])
    assert "| 0.000 ± 0.000 | 1 | 0 ± 0 |" in capsys.readouterr().out
    main(["training", *runs_of(tmp_path, same, turn=-1)])
    assert "| 0.000 ± 0.000 | 1 |  |" in capsys.readouterr().out


def refusal_of(runs, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["training", *runs])
    assert ended.value.code == 2
    return capsys.readouterr()


def test_seeds_count_only_if_all_rows_and_rates_have_them(tmp_path, capsys):
    said = refusal_of(runs_of(tmp_path, OUTCOMES | {("mine", 1): (0.4, 0.6)}), capsys)
    assert "3 seeds that all" in said.err
    assert "seeds [1, 2]; not of all rows and rates: [3]" in said.out


def test_runs_are_finished_named_once_and_compared_with_those_of_the_same_flags(tmp_path, capsys):
    runs = runs_of(tmp_path, OUTCOMES)
    assert "name each run once" in refusal_of([*runs, runs[0]], capsys).err
    one = tmp_path / "one"
    run_of(one, [0.25], 0.5, method="delta", proxy="scalar", lr=1.0, seed=1)
    assert "is not finished" in refusal_of([*runs, str(one)], capsys).err
    run_of(one, [0.25, 0.5], 0.75, method="delta", proxy="scalar", lr=1.0, seed=1)
    line = training.line_of(one)
    assert [*line.values()][1:] == ["delta scalar", 1.0, 1, 0.75, "0.2500 0.5000"]
    changed = {"method": "delta", "seed": 2, "lr": 3.0, "save_every": 7}
    run_of(one, [0.25, 0.5], 0.75, **changed)
    assert training.line_of(one)["flags"] == line["flags"]
    run_of(one, [0.25, 0.5], 0.75, **changed, steps=1)
    assert training.line_of(one)["flags"] != line["flags"]
