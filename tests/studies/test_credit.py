"""studies/credit.py, credit_study.py and credit_tables.py, whichever tokens are drawn."""

import csv
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toy_runs import InThisProcess

import ablations
import toy
from delta import delta_coefficients
from grading import grade
from infra.errors import UserError
from methods import row_proxy
from studies import credit_study, credit_tables, running, truth
from studies.credit import (
    NEARLY,
    batch,
    gradient_estimate,
    packed_tokens,
    singled_out,
    weighed,
    weights_of,
)
from studies.credit_study import (
    COLUMNS,
    Sizes,
    against_truth,
    joined,
    line_of,
    lines_before,
    measured,
    truth_lines,
)
from studies.credit_tables import Column, Study, cell_texts, draw_split, print_tables
from studies.gradients import direction
from studies.places import STUDY
from studies.rows import (
    BEYOND,
    IN_RANGE,
    MEAN_ZERO,
    ORACLE,
    ROWS,
    STATIC,
    Row,
    configured,
    permuted,
)
from studies.runs import Job, Trained
from studies.statistics import mean_interval
from studies.tables import appending
from studies.training import FIRST_SEED, RATE

FEW = ("dapo", "random", ORACLE, "lm_head, K = 1", "topk, all three")


def write_csv(path, columns, lines):
    with appending(path, columns) as write:
        write(lines)


@pytest.fixture(scope="module")
def graded(base):
    """6 problems x 8 responses from the base model."""
    return batch(*base, toy.problems(6, seed=5), 8, seed=3)


def has_sides(graded):
    """Whether each half of the prompts has both sides; it nearly always does."""
    by_half = graded.advantages.view(-1, 2, graded.group)
    return all((s * by_half > 0).any(dim=2).any(dim=0).all() for s in (1, -1))


def test_code_toy_batch_has_rewards_from_tests_and_decisive_marks():
    problems = toy.code_task.problems(4, seed=5)
    graded = batch(*toy.code_base_model(), problems, 3, seed=3, limit=32)

    rollouts = graded.rollouts
    asked = [problem for problem in problems for _ in range(3)]
    rights = [
        toy.code_task.is_right(problem["problem"], text)
        for problem, text in zip(asked, rollouts.texts, strict=True)
    ]
    assert graded.rewards.tolist() == [float(right) for right in rights]

    marks = graded.decisive.split(rollouts.response_length.tolist())
    for i, problem in enumerate(asked):
        expected = toy.code_task.decisive(problem["problem"], rollouts.response_ids(i))
        assert torch.equal(marks[i], expected)
        assert rights[i] or marks[i].sum() <= 1


# ---- a graded batch ------------------------------------------------------------------------------


def test_batch_is_graded_problem_by_problem(graded):
    rollouts, tokens = graded.rollouts, graded.tokens
    rewards = []
    marks = []
    for i, problem in enumerate(tokens.problems):
        assert problem == toy.problems(6, seed=5)[i // 8]
        rewards.append(grade(rollouts.texts[i], problem))
        marks.append(toy.decisive(problem["problem"], rollouts.response_ids(i)))
    assert graded.rewards.tolist() == rewards
    assert torch.equal(graded.decisive, torch.cat(marks))
    assert torch.equal(tokens.advantage, graded.advantages.repeat_interleave(tokens.length))
    assert torch.equal(tokens.current, tokens.logprob)
    assert tokens.kept is None


def test_batch_stores_the_output_of_keep(base, graded):
    kept = batch(*base, toy.problems(6, seed=5), 8, seed=3, keep=row_proxy).tokens.kept
    N = len(graded.tokens.logprob)
    assert kept.shape == (N, base[0].config.hidden_size)
    assert torch.equal(kept.mine, torch.arange(N))


# ---- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STATIC)
def test_weights_of_every_row_have_mean_one(name, base, graded):
    weights = weights_of(name, base[0], graded)
    assert weights.shape == graded.tokens.logprob.shape
    assert (weights >= 0).all()
    assert float(weights.mean()) == pytest.approx(1, abs=1e-5)
    assert graded.tokens.kept is None  # no row changes the batch


def test_rows_are_different_methods(base, graded):
    assert len(set(STATIC.values())) == len(STATIC)
    if not has_sides(graded):
        return
    found = [weights_of(name, base[0], graded) for name in STATIC if name.startswith("topk")]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert not torch.equal(one, other)


@pytest.mark.parametrize(
    "name", [name for name in STATIC if STATIC[name].flags.startswith("--proxy")]
)
def test_weighed_rows_match_the_weights_in_train_py(name, base, graded):
    """Recording the scores does not change the weights from the method that the flags configure."""
    method, cfg = configured(STATIC[name], ["--group-size", str(graded.group)])
    tokens = packed_tokens(base[0], graded.rollouts, graded.advantages, method.keep)
    tokens.generator = torch.Generator().manual_seed(2)
    expected = method.weights(tokens, cfg)
    scored = {}
    for _ in range(2):  # the second call reads `scored`
        found = weighed(name, base[0], graded, seed=2, scored=scored).weights
        torch.testing.assert_close(found, expected / expected.mean())
    assert list(scored) == [("delta", cfg.proxy, cfg.proxy_topk)]


def test_cache_distinguishes_proxies_with_different_k(base, graded, monkeypatch):
    monkeypatch.setitem(ROWS, "top 2", Row("--proxy topk --proxy-topk 2"))
    scored = {}
    weighed("topk", base[0], graded, scored=scored)
    found = weighed("top 2", base[0], graded, scored=scored).weights
    assert torch.equal(found, weights_of("top 2", base[0], graded))
    if has_sides(graded):
        assert not torch.equal(found, weights_of("topk", base[0], graded))


@pytest.mark.parametrize("name", [*BEYOND, "no centroids", "grpo"])
def test_weighed_rows_without_scores_match_the_method(name, base, graded):
    """This also holds for methods that keep hidden states."""
    method, cfg = configured(ROWS[name], ["--group-size", str(graded.group)])
    tokens = packed_tokens(base[0], graded.rollouts, graded.advantages, method.keep)
    expected = method.weights(tokens, cfg)
    scored = {}
    found = weighed(name, base[0], graded, scored=scored)
    torch.testing.assert_close(found.weights, expected / expected.mean())
    assert len(scored) == bool(method.keep)
    assert all(math.isnan(x) for x in (*found.spread, *found.saturated))


def test_token_selection_matches_the_method(base, graded):
    method, cfg = configured(ROWS["select top"], ["--group-size", str(graded.group)])
    tokens = packed_tokens(base[0], graded.rollouts, graded.advantages, method.keep)
    expected = method.weights(tokens, cfg)
    found = weighed("select top", base[0], graded)
    torch.testing.assert_close(found.weights, expected / expected.mean())
    if has_sides(graded):
        plain = weighed("lm_head, K = 1", base[0], graded)
        assert (found.spread, found.saturated) == (plain.spread, plain.saturated)


def test_all_studies_share_the_zero_mean_proxy_rows():
    """`surprise, permuted` is the same row in the training and credit studies."""
    for name, row in MEAN_ZERO.items():
        assert ROWS[name] == row
    assert STATIC["surprise, permuted"] == MEAN_ZERO["surprise, permuted"]
    assert STATIC["surprise, K = 1"] == MEAN_ZERO["surprise"]


@pytest.mark.parametrize(("name", "ratio"), [(ORACLE, 11), (IN_RANGE, 1.5)])
def test_oracle_weights_have_the_given_ratio(name, ratio, base, graded):
    weights = weights_of(name, base[0], graded)
    decisive, other = weights[graded.decisive], weights[~graded.decisive]
    assert torch.allclose(decisive, ratio * other[0])
    assert torch.equal(other, other[0].expand_as(other))


@pytest.mark.parametrize("name", ["random", "topk, permuted"])
def test_random_weights_depend_on_the_seed(name, base, graded):
    first = weights_of(name, base[0], graded, seed=1)
    assert torch.equal(first, weights_of(name, base[0], graded, seed=1))
    if has_sides(graded):
        assert not torch.equal(first, weights_of(name, base[0], graded, seed=2))


def test_adding_a_constant_to_the_proxy_changes_no_coefficient(base, graded):
    """The constant changes the centroids' cosine, so that cosine does not predict the weights."""
    tokens = packed_tokens(base[0], graded.rollouts, graded.advantages, row_proxy)
    v = tokens.kept.values.double()
    for K in (0, 1, 3):
        expected = delta_coefficients(v, tokens.advantage, K)
        moved = delta_coefficients(v - 3 * v.mean(dim=0), tokens.advantage, K)
        torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-5)


def test_permuted_advantages_stay_in_their_group():
    advantages = torch.arange(24.0)
    found = permuted(advantages, 8, seed=0)
    assert not torch.equal(found, advantages)
    assert torch.equal(found.view(3, 8).sort(dim=1).values, advantages.view(3, 8))


def test_spread_is_the_deviation_divided_by_the_current_temperature(base, graded):
    """The spread is 1 with fresh γ. With a lagged γ, saturation follows the spread."""
    if not has_sides(graded):
        return
    for name in ("exact, K = 0", "exact, fresh", "lm_head, all three"):
        assert weighed(name, base[0], graded).spread == pytest.approx((1, 1), rel=1e-4)
    lagged = weighed("lm_head, K = 1", base[0], graded)
    assert min(lagged.spread) > 1  # the refinement separates the centroids
    for share in lagged.saturated:
        assert 0 <= share <= 1
    assert all(math.isnan(x) for x in weighed("dapo", base[0], graded).spread)


def test_saturated_counts_scores_near_0_or_1(base, graded):
    """α is recomputed from the weights: it is their position in the range before scaling."""
    if not has_sides(graded):
        return
    found = weighed("topk, K = 1", base[0], graded)
    method, cfg = configured(STATIC["topk, K = 1"], [])
    tokens = packed_tokens(base[0], graded.rollouts, graded.advantages, method.keep)
    cfg = replace(cfg, delta_variant="no_norm")
    no_norm = ablations.configured(method, cfg).weights(tokens, cfg)
    alpha = (no_norm - cfg.lam_min) / (cfg.lam_max - cfg.lam_min)
    for side, share in zip((1, -1), found.saturated, strict=True):
        here = alpha[tokens.advantage.sign() == side]
        expected = float(((here < 0.01) | (here > 0.99)).double().mean())
        assert share == pytest.approx(expected, abs=0.005)


def test_singled_out_matches_a_hand_calculation(graded):
    N = len(graded.decisive)
    half = N // 2
    small = SimpleNamespace(
        tokens=SimpleNamespace(
            advantage=torch.cat([torch.ones(half), -2 * torch.ones(N - half)]),
            logprob=torch.where(torch.arange(N) % 3 == 0, 0.0, -1.0),  # p = 1 on decisive tokens
        ),
        decisive=torch.arange(N) % 3 == 0,
    )
    weights = torch.where(small.decisive, 1.3, 1.0)
    weights[half:] = torch.where(small.decisive[half:], 0.5, 0.5 + NEARLY / 2)
    found = singled_out(weights, small)
    assert (found["auc_pos"], found["auc_neg"]) == (1, 0)
    assert (found["tied_pos"], found["tied_neg"]) == (0, 1)
    assert found["lift_pos"] == pytest.approx(0.3)
    assert found["lift_neg"] == pytest.approx(-NEARLY / 2, abs=1e-6)
    assert found["mean_neg"] == pytest.approx(float(weights[half:].mean()))
    assert found["mass_pos"] == pytest.approx(1.0)  # other tokens only: p = 1 has no gradient
    assert found["mass_neg"] == pytest.approx(0.5 + NEARLY / 2)


def test_gradient_estimate_of_one_group_uses_centred_rewards(base):
    estimate = gradient_estimate(*base, toy.problems(1, seed=1000), 8, seed=500)
    again = batch(*base, toy.problems(1, seed=1000), 8, seed=500)
    centred = again.rewards - again.rewards.mean()
    by_token = centred.repeat_interleave(again.tokens.length)
    expected = direction(base[0], again.rollouts, by_token)
    assert torch.allclose(estimate, expected, atol=1e-6)


# ---- one batch of the study ----------------------------------------------------------------------


def test_measured_numbers_follow_from_the_updates(base, graded, monkeypatch):
    monkeypatch.setattr(credit_study, "STATIC", {name: STATIC[name] for name in FEW})
    if not has_sides(graded):
        return
    lm = base[0]
    D = sum(p.numel() for p in lm.parameters())
    gradient = torch.randn(D, generator=torch.Generator().manual_seed(0))
    numbers, parts = measured(lm, graded, 4, gradient)
    assert list(numbers) == list(FEW) and parts.shape == (len(FEW), 3, D)

    for row, of_row in zip(FEW, parts, strict=True):
        weights = weights_of(row, lm, graded, seed=4)
        update = direction(lm, graded.rollouts, weights * graded.tokens.advantage)
        torch.testing.assert_close(of_row[0], update, rtol=1e-3, atol=3e-3)
        cosine = float(torch.cosine_similarity(update, gradient, dim=0))
        assert numbers[row]["cosine"] == pytest.approx(cosine, abs=1e-4)
        of_sign = float(torch.cosine_similarity(of_row[0].sign(), gradient, dim=0))
        assert numbers[row]["cosine_sign"] == pytest.approx(of_sign, abs=1e-6)
        assert set(numbers[row]) < set(COLUMNS)
    dapo = numbers["dapo"]
    assert dapo["cosine"] == pytest.approx(dapo["cosine_shape"]) == dapo["cosine_means"]
    all_three = numbers["topk, all three"]  # both sides already have mean 1
    assert all_three["cosine"] == pytest.approx(all_three["cosine_shape"], abs=1e-5)


def test_joined_batches_equal_one_batch(base, graded):
    lm = base[0]
    other = batch(*base, toy.problems(2, seed=6), 8, seed=4)
    whole = joined(lm, [graded, other])
    assert len(whole.rollouts) == 64
    N = len(graded.decisive)
    assert torch.equal(whole.decisive[N:], other.decisive)
    torch.testing.assert_close(whole.tokens.logprob[:N], graded.tokens.logprob)
    assert torch.equal(whole.tokens.advantage[N:], other.tokens.advantage)
    dapo = direction(lm, whole.rollouts, whole.tokens.advantage)
    parts = [direction(lm, x.rollouts, x.tokens.advantage) for x in (graded, other)]
    torch.testing.assert_close(dapo, parts[0] + parts[1], rtol=1e-3, atol=3e-3)


# ---- against the true advantages -----------------------------------------------------------------


def test_against_truth_matches_a_hand_calculation():
    advantage = torch.tensor([1.0, 1.0, 1.0, -2.0, -2.0, -2.0])
    gains = [0.5, 0.0, -0.2, -0.4, 0.3, 0.0]
    errors = [0.1, 0.0, 0.15, 0.1, 0.1, 0.0]
    known = [{"advantage": a, "standard_error": b} for a, b in zip(gains, errors, strict=True)]
    weights = torch.tensor([1.2, 0.9, 0.8, 1.1, 1.2, 0.8])
    found = against_truth(weights, advantage, known)
    assert found["size_auc_pos"] == 1  # only 0.5 is clear
    assert found["size_auc_neg"] == 1  # 0.4 and 0.3
    assert found["signed_auc_pos"] == 1
    assert found["signed_auc_neg"] == 0.5  # only -0.4; 0.3 is a right step in a wrong response
    assert found["signed_rank_pos"] == pytest.approx(1)
    assert found["signed_rank_neg"] == pytest.approx(-0.5)  # 2 3 1 against targets 0.2, -0.15, 0


@pytest.fixture
def small_truth(monkeypatch):
    monkeypatch.setattr(truth, "PROMPTS", 4)
    monkeypatch.setattr(credit_study, "STATIC", {name: STATIC[name] for name in FEW})


def test_truth_lines_of_known_responses(small_truth, tmp_path):
    lm, tokenizer = truth.load(0)
    graded = truth.batch_of(lm, tokenizer, 0)
    words = tokenizer.convert_ids_to_tokens(graded.tokens.token.tolist())
    known = []
    for i, word in enumerate(words):
        known.append(dict.fromkeys(truth.COLUMNS, 0) | {"position": i, "token": word})
        known[-1] |= {"advantage": (i % 7) / 10, "standard_error": 0.15, "reward": 1.0}
    path = tmp_path / "truth.csv"
    write_csv(path, truth.COLUMNS, known)
    lines = truth_lines(0, path)
    assert [line["row"] for line in lines] == list(FEW)
    assert {line["batch"] for line in lines} == {"truth"}
    weights = weights_of("random", lm, graded, seed=0)
    expected = against_truth(weights, graded.tokens.advantage, truth.read_truth(path))
    for name, value in expected.items():
        assert lines[1][name] == pytest.approx(value, abs=1e-5, nan_ok=True)


def test_truth_lines_need_the_file_and_its_responses(small_truth, tmp_path, capsys):
    path = tmp_path / "truth.csv"
    assert truth_lines(0, path) == []
    said = capsys.readouterr().out
    assert "bench.py truth" in said and said.count("\n") == 1
    write_csv(path, truth.COLUMNS, [dict.fromkeys(truth.COLUMNS, 0) | {"token": "7"}])
    assert truth_lines(0, path) == []
    assert "does not hold the responses" in capsys.readouterr().out


# ---- the study -----------------------------------------------------------------------------------

TINY = Sizes(bases=(0,), batches=2, prompts=6, group=8, gradient_prompts=2, gradient_group=8)


def test_study_fills_the_csv_and_resumes_from_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(credit_study, "STATIC", {name: STATIC[name] for name in FEW})
    monkeypatch.setattr(running, "ProcessPoolExecutor", InThisProcess)
    args = SimpleNamespace(csv=str(tmp_path / "credit.csv"))
    sizes = replace(TINY, truth=tmp_path / "none.csv")
    threads = torch.get_num_threads()
    try:
        lines = credit_study.credit(args, sizes)
        written = (tmp_path / "credit.csv").read_text()
        monkeypatch.setattr(credit_study, "measured", None)  # not called again
        again = credit_study.credit(args, sizes)
    finally:
        torch.set_num_threads(threads)

    assert (tmp_path / "credit.csv").read_text() == written
    assert len(again) == len(lines)
    keys = [(line["row"], line["batch"]) for line in lines]
    assert keys[0] == ("policy gradient", "whole")
    for row in FEW:
        assert [b for r, b in keys if r == row] == ["0", "1", "sum", "whole"]
    with open(args.csv) as file:
        assert next(csv.reader(file)) == COLUMNS

    cosines = {(line["row"], line["batch"]): line["cosine"] for line in lines}
    one, other = cosines["dapo", "sum"], cosines["dapo", "whole"]
    assert one == pytest.approx(other, abs=1e-4, nan_ok=True)  # linear in responses
    assert "compared with Q - V" in capsys.readouterr().out


def test_study_refuses_a_csv_with_wrong_columns_or_rows(tmp_path):
    path = tmp_path / "credit.csv"
    assert lines_before(path) == []
    write_csv(path, ["row", "filler"], [{"row": "dapo", "filler": 1}])
    with pytest.raises(UserError, match="does not have the columns"):
        lines_before(path)
    path.unlink()
    write_csv(path, COLUMNS, [line_of(0, "grpo", 1)])
    with pytest.raises(UserError, match="'grpo'"):
        lines_before(path)


def test_a_csv_without_a_current_row_is_refused(tmp_path):
    path = tmp_path / "credit.csv"
    write_csv(path, COLUMNS, [line_of(0, row, "whole") for row in STATIC if row != "no centroids"])
    with pytest.raises(UserError, match="earlier version and lacks no centroids: move it away"):
        credit_study.credit(SimpleNamespace(csv=str(path)))


def test_csv_lines_round_trip(tmp_path):
    line = line_of(3, "dapo", 7, tokens=120, cosine=0.123456789)
    write_csv(tmp_path / "credit.csv", COLUMNS, [line])
    (again,) = lines_before(tmp_path / "credit.csv")
    assert (again["base"], again["batch"], again["cosine"]) == (3, "7", 0.12346)
    np.testing.assert_equal(again, line)


# ---- tables --------------------------------------------------------------------------------------


def made_up(bases=4):
    """Lines in which the oracle's cosines are 0.1 above DAPO's, and random's are scattered."""
    rng = np.random.default_rng(0)
    lines = []
    for base in range(bases):
        lines.append(line_of(base, "policy gradient", "whole", agreement=0.5))
        level = 0.5 + 0.05 * rng.normal()
        for row in ("dapo", "random", ORACLE):
            for kind in ("0", "1", "sum", "whole"):
                cosine = level + {"dapo": 0, ORACLE: 0.1}.get(row, 0.01 * rng.normal())
                cosine += 0.001 * rng.normal()
                names = ("cosine", "cosine_shape", "cosine_means", "cosine_sign")
                numbers = dict.fromkeys(names, cosine)
                auc = {"dapo": 0.5, ORACLE: 1.0}.get(row, 0.5 + 0.01 * rng.normal())
                numbers |= {"auc_pos": auc, "agreement": 0.8}
                lines.append(line_of(base, row, kind, **numbers))
    return lines


def test_cells_are_means_over_batches_then_over_bases():
    lines = made_up()
    study = Study(lines)
    by_base = []
    for base in range(4):
        here = [x for x in lines if x["base"] == base and x["row"] == ORACLE]
        by_base.append(np.mean([x["cosine"] for x in here if x["batch"] in ("0", "1")]))
    cells = study.cells("cosine")
    np.testing.assert_allclose(cells[ORACLE], by_base)
    assert cell_texts(Column("", cells))[ORACLE] == mean_interval(by_base)
    assert "dapo" not in study.over_dapo("cosine")
    difference = study.over_dapo("cosine")[ORACLE]
    np.testing.assert_allclose(difference, cells[ORACLE] - cells["dapo"])


def test_stars_mark_significant_differences():
    study = Study(made_up())
    texts = cell_texts(Column("", study.over_dapo("cosine"), null=0, digits=4))
    assert texts[ORACLE].endswith("*") and texts[ORACLE].startswith("+")
    assert not texts["random"].endswith("*")
    assert list(texts) == ["random", ORACLE]  # a row without lines has no cell
    assert cell_texts(Column("", study.cells("auc_pos"), null=0.5))["dapo"] == "0.500 ± 0.000"


def test_both_cosines_are_correlated_with_training_reward(capsys):
    """The sign's cosine rises linearly with the training reward, the update's cosine falls."""
    lines = []
    runs = {}
    rows = credit_tables.FORMS_OF_DELTA | {row: row for row in credit_tables.OTHERS}
    for number, (row, name) in enumerate(rows.items()):
        reward = 0.1 * number % 0.7
        lines.append(line_of(0, row, "0", cosine=-reward, cosine_sign=2 + reward / 3))
        lines.append(line_of(0, row, "sum", cosine=number, cosine_sign=-reward))  # not read
        for seed in (FIRST_SEED, FIRST_SEED + 1):
            run = Trained((0.5,), (0.5,), 9.0, 1.0, (reward + 0.01 * seed,), (0.3,))
            runs[Job(STUDY, name, RATE, seed)] = run
            runs[Job(STUDY, name, 2 * RATE, seed)] = replace(run, rewards=(0.0,))
            runs[Job(STUDY, name, RATE, 0)] = replace(run, rewards=(0.5 - reward,))  # a pilot
    credit_tables.print_correlations(lines, runs)
    said = capsys.readouterr().out
    assert "| all rows in both studies | 15 | -1.00 | 1.00 |" in said
    assert "| forms of DelTA | 10 | -1.00 | 1.00 |" in said

    of_two = [line for line in lines if line["row"] in ("dapo", ORACLE)]
    credit_tables.print_correlations(of_two, runs)
    assert capsys.readouterr().out == ""


def test_tables_are_printed(capsys):
    print_tables(made_up())
    said = capsys.readouterr().out
    assert "4 base models" in said and "True advantages" not in said
    assert said.count("| dapo | ") == 3 and said.count(f"| {ORACLE} | ") == 4
    assert said.count("Adam's first step") == 1
    # 0.5 between halves: the squared cosine with the truth is 2/3, its root 0.816
    assert "by base: 0.500, 0.500, 0.500, 0.500;" in said and "0.816" in said
    print_tables(made_up(bases=1))
    assert "fewer than two" in capsys.readouterr().out


def test_contrasts_are_paired_by_base(capsys):
    lines = []
    for base in range(3):
        for row in STATIC:
            cosine = 0.1 * base + (0.02 if row.endswith("fresh") else 0.0)
            numbers = {"cosine": cosine + 0.001 * (row == "topk, fresh") * base}
            lines += [line_of(base, row, kind, **numbers) for kind in ("0", "sum", "whole")]
    print_tables(lines)
    said = capsys.readouterr().out
    assert said.count("γ fresh, not lagged | +0.02") == 4
    assert "| exact proxy: no refinement | +0.0000 ± 0.0000" in said
    assert "| top-K proxy: γ fresh, not lagged | +0.0210 ± 0.0025* |" in said


def test_split_is_drawn(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(credit_tables, "draw_differences", lambda *args: drawn.append(args))
    lines = made_up()
    for line in lines:
        if line["row"] == ORACLE:
            line["cosine_means"] -= 0.07
            line["cosine_shape"] -= 0.04
    draw_split(lines, tmp_path / "credit.png")
    groups, _, path, what = drawn[0]
    assert path == tmp_path / "credit.png" and "4 base models" in what
    gains = {label: group[ORACLE].mean() for label, group in groups.items()}
    assert gains["sides' mean weights alone"] == pytest.approx(0.03, abs=0.005)
    assert gains["shape inside the sides alone"] == pytest.approx(0.06, abs=0.005)
    assert gains["both: the update"] == pytest.approx(0.1, abs=0.005)
    assert all("dapo" not in group for group in groups.values())
    assert not any("permuted" in row for group in groups.values() for row in group)

    monkeypatch.undo()
    draw_split(made_up(), path)
    assert path.stat().st_size > 10_000
