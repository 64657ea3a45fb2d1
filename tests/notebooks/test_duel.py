"""notebooks/duel.py: your own method, trained against DAPO on the same seeds."""

import json
import os
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ROOT

sys.path.insert(0, str(ROOT / "notebooks"))

import duel
from duel import COLUMNS, Duel, Setting
from studies.statistics import half_width
from studies.tables import read_csv

import train
from infra.errors import UserError
from methods import METHODS, Method, row_proxy

TINY = Setting(steps=2, prompts=4, group=4)
DAPO = METHODS["dapo"]


def calm(tokens, flags):
    """ρ: half the weight on tokens where the policy was uncertain."""
    weight = torch.where(tokens.entropy > 1.0, 0.5, 1.0)
    return weight / weight.mean()


CALM = Method(weights=calm)


@pytest.fixture
def pretended(monkeypatch):
    """Nothing is trained: `trained` returns rewards computed from the seed.

    A fingerprint is the weights function's name. Returns the seeds of the runs so far.
    """
    asked = []

    def fingerprint(method, setting, name="yours"):
        return method.weights.__name__

    def trained(method, setting, seed, heard):
        asked.append(seed)
        return [0.25 * seed] + [0.5 + 0.125 * (method is CALM)] * (setting.steps - 1)

    monkeypatch.setattr(duel, "fingerprint", fingerprint)
    monkeypatch.setattr(duel, "trained", trained)
    return asked


# ---- runs ----------------------------------------------------------------------------------------


def test_a_run_matches_train_py_and_paired_runs_start_alike(tmp_path):
    """DAPO's rewards equal train.py's; the other method has the same first reward."""
    heard = []
    rewards = duel.trained(DAPO, TINY, 5, lambda so_far: heard.append(list(so_far)))
    assert heard == [rewards[:1], rewards] and len(rewards) == 2
    assert duel.trained(CALM, TINY, 5, lambda so_far: None)[0] == rewards[0]

    cfg = duel.configured(TINY, DAPO, "--seed", "5", "--output-dir", str(tmp_path))
    train.train(cfg)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["reward"] for line in lines]
    assert rewards == pytest.approx(steps, abs=1e-6)


def test_a_run_uses_the_clip_range_of_its_method():
    assert duel.configured(TINY, METHODS["grpo"]).clip_high == 0.2
    assert duel.configured(TINY, CALM).clip_high == 0.28


# ---- fingerprints --------------------------------------------------------------------------------


def test_a_fingerprint_depends_on_what_a_method_computes():
    """Identical weights have the same fingerprint, however they are written.

    Different weights, or a different surrogate, give a different fingerprint.
    """

    def same(tokens, flags):
        return calm(tokens, flags) * 1.0

    def other(tokens, flags):
        return torch.where(tokens.entropy > 1.0, 0.9, 1.0)

    def drawn(tokens, flags):
        return torch.rand(len(tokens.logprob), generator=tokens.generator)

    methods = [CALM, Method(weights=same), Method(weights=other), Method(weights=drawn), DAPO]
    methods += [METHODS["reinforce"], METHODS["fipo"], METHODS["delta"]]
    first, second, *others = [duel.fingerprint(method, TINY) for method in methods]
    assert first == second
    assert len({first, *others}) == len(methods) - 1
    assert duel.fingerprint(Method(weights=drawn), TINY) == others[1]


@pytest.mark.parametrize("weights", [lambda t, f: torch.ones(3), lambda t, f: t.advantage])
def test_invalid_weights_are_refused_before_any_training(weights, monkeypatch, tmp_path):
    monkeypatch.setattr(duel, "trained", None)  # calling it fails
    with pytest.raises(UserError, match="mine"):
        duel.duel(Method(weights=weights, keep=row_proxy), "mine", [0], TINY, tmp_path / "r.csv")
    assert not (tmp_path / "r.csv").exists()


# ---- duels ---------------------------------------------------------------------------------------


def test_a_duel_keeps_its_runs_and_adds_the_missing_ones(pretended, tmp_path):
    path = tmp_path / "duels.csv"
    first = duel.duel(CALM, "calm", [3, 4], TINY, path)
    assert pretended == [3, 3, 4, 4] and first.trained == 4
    assert first.seeds == [3, 4]
    assert first.dapo == [[0.75, 0.5], [1.0, 0.5]]
    assert first.differences == pytest.approx([0.0625, 0.0625])

    more = duel.duel(CALM, "calm", [3, 4, 5], TINY, path)
    assert pretended[4:] == [5, 5] and more.trained == 2
    assert more.yours[:2] == first.yours
    assert len(read_csv(path, COLUMNS)) == 6

    duel.duel(METHODS["grpo"], "grpo", [3], TINY, path)  # DAPO's run already exists
    duel.duel(CALM, "calm", [3], replace(TINY, steps=3), path)  # a different setting: both run
    assert pretended[6:] == [3, 3, 3]


def test_a_stopped_duel_keeps_its_finished_pairs(pretended, monkeypatch, tmp_path, capsys):
    path = tmp_path / "duels.csv"
    trained = duel.trained

    def interrupted(method, setting, seed, heard):
        if seed == 2 and method is CALM:
            raise KeyboardInterrupt
        return trained(method, setting, seed, heard)

    monkeypatch.setattr(duel, "trained", interrupted)
    stopped = duel.duel(CALM, "calm", [1, 2, 3], TINY, path)
    assert stopped.seeds == [1] and "1 of 3 pairs are finished" in capsys.readouterr().out

    monkeypatch.setattr(duel, "trained", trained)
    whole = duel.duel(CALM, "calm", [1, 2, 3], TINY, path)
    assert whole.seeds == [1, 2, 3] and whole.trained == 3
    assert pretended == [1, 1, 2, 2, 3, 3]


def test_ctrl_c_while_a_run_trains_stops_the_duel(tmp_path, monkeypatch, capsys):
    """train.py's loop ends after the step. Nothing is saved; the signal handler is restored."""
    path = tmp_path / "duels.csv"
    trained = duel.trained

    def stopped(method, setting, seed, heard):
        return trained(method, setting, seed, lambda so_far: os.kill(os.getpid(), signal.SIGINT))

    monkeypatch.setattr(duel, "trained", stopped)
    handler = signal.getsignal(signal.SIGINT)
    assert duel.duel(CALM, "calm", [1], TINY, path).seeds == []
    assert signal.getsignal(signal.SIGINT) is handler
    assert "0 of 1 pairs are finished" in capsys.readouterr().out
    assert read_csv(path, COLUMNS) == []


def test_a_csv_with_other_columns_is_refused(tmp_path):
    path = tmp_path / "duels.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="does not have the columns"):
        duel.duel(CALM, "calm", [0], TINY, path)


# ---- the class -----------------------------------------------------------------------------------

FOUND = Duel("calm, mostly", TINY, [0, 1], dapo=[[0.2, 0.4], [0.3, 0.5]], yours=[[0.2, 0.6]] * 2)


def test_a_line_in_the_class_csv_can_be_read_back(tmp_path):
    path = tmp_path / "class.csv"
    assert duel.students(TINY, [0, 1], path) == {}
    path.write_text("\n".join([",".join(duel.CLASS), FOUND.line("Ada, Countess")]) + "\n")
    assert duel.students(TINY, [0, 1], path) == {"Ada, Countess: calm, mostly": 0.05}
    [line] = read_csv(path, duel.CLASS)
    assert float(line["half_width"]) == pytest.approx(half_width([0.1, 0.0]), abs=1e-4)

    for setting, seeds in ((replace(TINY, rate=1e-3), [0, 1]), (TINY, [0, 1, 2])):
        with pytest.raises(UserError, match="line 2"):
            duel.students(setting, seeds, path)


# ---- its picture ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [0, 1, 2, 5])
def test_the_picture_shows_every_pair_and_an_interval_for_two_or_more(pairs):
    figure = duel.plt.figure()
    found = Duel("calm", TINY, list(range(pairs)))
    found.dapo = [[0.2, 0.4 + 0.01 * i] for i in range(pairs)]
    found.yours = [[0.2, 0.5]] * pairs
    duel.draw(figure, found, running=[0.3], label="calm, seed 9")
    curves, differences = figure.axes
    assert len(curves.lines) == 2 * pairs + 2 * (pairs > 0) + 1
    assert len(differences.containers) == max(0, pairs - 1)
    crosses = differences.lines[1].get_ydata()
    assert np.asarray(crosses) == pytest.approx(found.differences)
    duel.plt.close(figure)
