"""Tests python -m benchmarks gain: rows against slow ones, kills, flags, tables."""

import pytest
import torch
from hashed_rewards import rewarded
from references import method_weights, token_batch
from toy_runs import HELD_OUT, ROOT, refusal

import config
from benchmarks import gain, gain_rows, gain_tables
from benchmarks.__main__ import main
from infra.folder import write_json
from methods import Method

FLAGS = "gain --model toy --batches 8 --prompts 2 --group-size 4 --max-new-tokens 40"


def test_derived_rows_by_hand():
    lam, A = torch.tensor([1.2, 0.9, 1.0, 0.8]), torch.tensor([2.0, 1.0, -1.0, -3.0])
    expected = {  # λ |A| is 3.3 of DAPO's mass 3 where A > 0, and 3.4 of 4 where A < 0
        "tokens only": [1.2 / 1.1, 0.9 / 1.1, 1 / 0.85, 0.8 / 0.85],
        "sides only": [1.05, 1.05, 0.9, 0.9],
        "two constants": [1.1, 1.1, 0.9, 0.9],
        "inverse constants": [0.9, 0.9, 1.1, 1.1],
    }
    found = gain_rows.derived_weights(lam, A)
    assert {name: pytest.approx(row.tolist()) for name, row in found.items()} == expected


SIGNS = {"sure": 1, "unsure": -1}


@pytest.mark.parametrize("name", ["sure_sure", "unsure_unsure", "unsure_sure", "sure_unsure"])
def test_weights_by_p_follow_the_rank_of_p_and_keep_each_side_s_mass(name):
    pos, neg = (SIGNS[word] for word in name.split("_"))
    tokens = token_batch([3, 5, 2, 4, 7])  # A is 1, -1, 0.5, 0 and 1
    weight = method_weights(tokens, "--method", name)
    mass = tokens.advantage.abs()
    for side, sign in ((tokens.advantage > 0, pos), (tokens.advantage < 0, neg)):
        assert (weight * mass)[side].sum() == pytest.approx(float(mass[side].sum()))
        order = tokens.old_logprob[side].argsort()
        assert (sign * weight[side][order].diff() > 0).all()
        spread = 0.2 * (1 - 1 / int(side.sum()))  # ranks are at the middle of equal shares
        ratio = float(weight[side].max() / weight[side].min())
        assert ratio == pytest.approx((1 + spread) / (1 - spread))
    assert (weight[tokens.advantage == 0] == 1).all()


@pytest.fixture
def few_rows(monkeypatch):
    few = {name: gain_rows.ROWS[name] for name in gain_rows.BY_SIDE}
    monkeypatch.setattr(gain_rows, "ROWS", few)


@pytest.fixture
def command(tmp_path, monkeypatch, few_rows):
    """command(flags) returns the result as text, measured with few rows."""
    monkeypatch.setattr(gain_tables, "SEEN", 0)

    def run(*more: str, folder: str = "policy") -> str:
        main([*FLAGS.split(), "--output-dir", str(tmp_path / folder), *more])
        return (tmp_path / folder / gain.RESULT).read_text()

    return run


def test_rows_of_a_block_beside_slow_ones(tmp_path, monkeypatch, few_rows):
    """Clipped sums for Adam's moments and KLs on the next batch agree with loops over the rows."""
    words = FLAGS.replace("--max-new-tokens 40", "--max-new-tokens 12").split()[1:]
    study = gain.Study([*words, "--output-dir", str(tmp_path / "policy")])
    with rewarded():  # each group has unequal rewards
        batches = study.batches
    b, c = 2, 2  # with 8 batches a block is one batch
    assert study.own[c] == [b]
    own = {x.problem["problem"] for x in batches[b]}
    assert not own & {x.problem["problem"] for x in batches[b + 1]}  # blocks share no problem

    micro_batches, lines = study.lines_of(b)
    rows = torch.stack([*lines.values()][gain_rows.FIRST :])
    rows = gain.gradients(study.policy, micro_batches, rows)  # [W, D]
    norm = rows.norm(dim=1)
    monkeypatch.setattr(gain, "CLIP", float(norm.median()))  # some are clipped, some are not
    found = study.products_of_block(c)
    clipped = rows * (gain.CLIP / norm).clamp(max=1)[:, None]
    atol = 1e-4 * float(clipped.abs().max())
    torch.testing.assert_close(found["sums"][1:], clipped, rtol=0, atol=atol)
    torch.testing.assert_close(found["squares"], clipped.square(), rtol=0, atol=atol**2 + atol)

    micro_batches, _ = study.lines_of(b + 1)
    parameters = list(study.policy.parameters())
    slopes = []
    for micro in micro_batches:
        for logprob in study.policy(micro.ids, micro.is_token).logprob:
            each = torch.autograd.grad(logprob, parameters, retain_graph=True)
            slopes.append(rows @ torch.cat([x.flatten() for x in each]) / norm)
    slow = torch.stack(slopes).square().mean(dim=0) / 2
    torch.testing.assert_close(found["kl"][0].float(), slow, rtol=0.02, atol=0)


def test_a_killed_measurement_goes_on(command, tmp_path, monkeypatch, capsys):
    whole = command(folder="whole")
    assert "| two constants | " in capsys.readouterr().out

    class Killed(Exception):
        pass

    saved = []
    save = torch.save
    for limit in (1, 4, 8):  # killed while sampling, summing J, and measuring rows

        def failing(content, path, limit=limit):
            save(content, path)
            saved.append(path.name)
            if len(saved) == limit:
                raise Killed

        monkeypatch.setattr(torch, "save", failing)
        with pytest.raises(Killed):
            command()
    monkeypatch.setattr(torch, "save", save)
    assert command() == whole
    assert not list((tmp_path / "policy").glob("direction*"))
    monkeypatch.setattr(gain, "graded_groups", None)  # nothing is sampled again
    assert command() == whole


def test_a_result_belongs_to_its_flags_and_code_and_is_printed_again(
    command, tmp_path, monkeypatch, capsys
):
    written = command()
    shown = capsys.readouterr().out
    words = [*FLAGS.split(), "--output-dir", tmp_path / "policy"]
    for flags in (["--seed", "1"], ["--data", HELD_OUT], ["--proxy", "scalar"]):
        assert "policy holds another run" in refusal(main, [*words, *flags], capsys)
    assert (tmp_path / "policy" / gain.RESULT).read_text() == written
    main(["gain", str(tmp_path / "policy")])
    assert capsys.readouterr().out == shown
    (tmp_path / "edited.py").write_text("# an edited method")
    monkeypatch.setattr(gain, "CODE", [tmp_path / "edited.py"])
    assert "code of the methods" in refusal(main, words, capsys)

    run = tmp_path / "run"  # of train.py
    run.mkdir()
    write_json(run / "config.json", {"method": "dapo", "seed": 0})
    words = [*FLAGS.split(), "--output-dir", run]
    assert "run holds another run" in refusal(main, words, capsys)
    assert "run has no gain.csv" in refusal(main, ["gain", run], capsys)


def test_a_method_of_one_s_own_is_a_row(command, monkeypatch, capsys):
    def rarity(tokens, v, cfg):
        return tokens.old_logprob / tokens.old_logprob.mean()

    monkeypatch.setitem(config.METHODS, "rarity", Method(weights=rarity))
    command("--method", "rarity")
    assert "\n| --method rarity | " in capsys.readouterr().out
    command("--method", "gspo", folder="other")
    assert "\n| --method gspo (its weights alone) | " in capsys.readouterr().out


def test_mistakes_are_one_line(tmp_path, capsys):
    few = tmp_path / "few.jsonl"
    few.write_text('{"problem": "1+1", "answer": "2"}\n')
    words = [*FLAGS.split(), "--output-dir", tmp_path / "refused"]
    for flags, said in {
        f"--data {few}": "gain needs one for each of its 8 blocks",
        "--batches 7": "must be at least 8",
        "--dtype bfloat16": "in float32",
    }.items():
        assert said in refusal(main, [*words, *flags.split()], capsys)
        assert not (tmp_path / "refused").exists()
    with rewarded(lambda texts, *_: [0.0] * len(texts)):
        assert "all rewards of each group are equal" in refusal(main, words, capsys)


def test_per_cent_of_nothing_is_not_printed(tmp_path, capsys):
    lines = "row,statistic,values\ndapo,gain,1 0.5 1.5 1\ndelta,gain,2 1 3 2\n"
    (tmp_path / gain.RESULT).write_text(lines)
    main(["gain", str(tmp_path)])
    said = capsys.readouterr().out
    assert "dapo's own gain is not above 0" in said and "delta" not in said


def test_the_repository_s_results_are_printed_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    main(["gain"])
    said = capsys.readouterr().out
    assert said.count("| held equal |") == said.count("p with Adam") >= 8
    assert said.count("dapo's own gain is not above 0") == 1  # GSM8K
    main(["gain", "--picture", str(tmp_path / "gain.png")])
    assert (tmp_path / "gain.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match="2"):
        main(["gain", "--picture"])
    assert "--picture needs a file" in capsys.readouterr().err
