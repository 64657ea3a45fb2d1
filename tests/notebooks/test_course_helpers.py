"""notebooks/helpers.py: drawing, grading and calculating in the course's notebooks."""

import base64
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from conftest import ROOT

sys.path.insert(0, str(ROOT / "notebooks"))

import helpers
from infra.policy import Policy

from delta import delta_coefficients, margins, temperatures
from grpo import side_centroids


@pytest.fixture
def displayed(monkeypatch):
    """The arguments of all calls of `display`: a list of (data, metadata)."""
    seen = []

    def display(data, metadata=None, raw=False):
        assert raw
        seen.append((data, metadata))

    monkeypatch.setattr(helpers, "display", display)
    return seen


# ---- pictures ------------------------------------------------------------------------------------


def test_show_displays_a_png_with_its_alt_text_and_closes_the_figure(displayed):
    fig, ax = plt.subplots()
    helpers.show(fig, "a picture of nothing")
    [(data, metadata)] = displayed
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert metadata == {"image/png": {"alt": "a picture of nothing"}}
    assert not plt.fignum_exists(fig.number)


def test_panels_draw_every_value_on_shared_axes(displayed):
    drawn = []

    def draw(ax, value):
        ax.plot([0, value])
        drawn.append((ax, value))

    helpers.panels(draw, "γ", [1, 2, 5], "three lines", live=False)
    axes, values = zip(*drawn, strict=True)
    assert values == (1, 2, 5)
    assert [ax.get_title() for ax in axes] == ["γ = 1", "γ = 2", "γ = 5"]
    assert len({ax.get_ylim() for ax in axes}) == 1
    assert len(displayed) == 1


def test_panels_show_a_slider_on_request(displayed, monkeypatch):
    calls = []
    monkeypatch.setattr(helpers, "slider", lambda *arguments: calls.append(arguments))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)

    def draw(ax, value):
        ax.plot([0, value])

    helpers.panels(draw, "γ", [1, 2], "lines")
    assert not calls
    helpers.panels(draw, "γ", [1, 2], "lines", live=True)
    assert calls == [(draw, "γ", [1, 2], "lines")]


def test_slider_does_nothing_without_ipywidgets(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)  # importing it fails
    assert helpers.slider(None, "γ", [1, 2], "lines") is None


class Handle:
    """A stub for the handle that `display` returns in a notebook, which can update a picture."""

    def __init__(self):
        self.updates = []

    def update(self, data, metadata=None, raw=False):
        assert raw
        self.updates.append((data, metadata))


def test_live_picture_is_updated_in_place(monkeypatch):
    handle = Handle()
    shown = []

    def display(data, metadata=None, raw=False, display_id=None):
        assert raw and display_id
        shown.append((data, metadata))
        return handle

    monkeypatch.setattr(helpers, "display", display)
    picture = helpers.LivePicture("a line that grows")
    figures = plt.get_fignums()
    for height in (1, 2):
        picture.draw(lambda fig, y: fig.subplots().plot([0, y]), height)
    assert len(shown) == len(handle.updates) == 1
    for data, metadata in shown + handle.updates:
        assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
        assert metadata == {"image/png": {"alt": "a line that grows"}}
    assert plt.get_fignums() == figures


# ---- coloured text -------------------------------------------------------------------------------


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def backgrounds(ax):
    """(column, line, opacity as a share of the maximum) for each word in a credit_text."""
    filled = [patch for patch in ax.patches if patch.get_fill()]
    return [(p.get_x(), p.get_y() + 0.5, round(p.get_alpha() / 0.5, 6)) for p in filled]


def test_credit_text_shows_sign_and_strength_by_colour_and_underline(ax):
    words, values = ["a", "b", "c", "d", "e"], [1.2, 1.1, 1.0, 0.999999, 0.8]
    helpers.credit_text(ax, words, values, "λ", centre=1)
    assert [share for _, _, share in backgrounds(ax)] == pytest.approx([1, 0.5, 0, 0, 1], abs=1e-4)
    strong, _, below = ax.lines  # no underline next to the centre
    assert [line.get_linewidth() for line in ax.lines] == [4, 2, 4]
    assert (strong.get_linestyle(), below.get_linestyle()) == ("-", ":")
    assert (strong.get_color(), below.get_color()) == (helpers.BLUE, helpers.ORANGE)
    assert ax.figure.get_supxlabel() == "blue, solid: above 1; orange, dotted: below"


def test_credit_text_places_every_letter_and_breaks_lines(ax):
    helpers.credit_text(ax, ["ab", "\n", "<eos>"], [0.0, 0.0, 0.0], "t")
    assert [word[:2] for word in backgrounds(ax)] == [(0, 0), (2, 0), (0, 1)]
    letters = [(text.get_text(), *text.get_position()) for text in ax.texts]
    assert letters[:4] == [("a", 0.5, 0), ("b", 1.5, 0), ("↵", 2.5, 0), ("<", 0.5, 1)]


def test_credit_text_fits_long_lines(ax):
    helpers.credit_text(ax, ["a" * 30], [0.0], "t")
    assert ax.get_xlim()[1] > 30


def test_credit_text_frames_marked_words_and_explains_the_frame(ax):
    helpers.credit_text(ax, ["a", "b"], [0.5, 0.5], "t", marks=[False, True])
    [frame] = [patch for patch in ax.patches if not patch.get_fill()]
    assert frame.get_x() == 1
    assert "frame" in ax.figure.get_supxlabel()


def test_credit_text_colour_saturates_at_its_limit(ax):
    helpers.credit_text(ax, ["a", "b", "c"], [0.1, -0.4, 5.0], "t", limit=0.4)
    assert [share for _, _, share in backgrounds(ax)] == [0.25, 1, 1]


# ---- exercises -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [[1.0, 2.0], torch.tensor([1.0, 2.0]), np.array([1, 2]), (1.00005, 2.0)],
)
def test_check_accepts_lists_arrays_and_tensors(answer, capsys):
    assert helpers.check(answer, torch.tensor([1.0, 2.0]), "look again") is True
    assert capsys.readouterr().out == "right\n"


@pytest.mark.parametrize(
    "answer",
    [[1.0, 3.0], [1.0, float("nan")], 1.0, [[1.0, 2.0]], "two", [1.0, None], [[1.0], [1.0, 2.0]]],
)
def test_check_prints_the_hint_for_a_wrong_answer(answer, capsys):
    assert helpers.check(answer, [1.0, 2.0], "look again") is False
    out = capsys.readouterr().out
    assert out.startswith("not right") and "look again" in out


def test_check_reports_a_wrong_shape(capsys):
    helpers.check(torch.ones(3), torch.ones(2), "one for each side")
    assert "shape (3,) where (2,) is expected" in capsys.readouterr().out


@pytest.mark.parametrize("stub", [None, ...])
def test_check_of_an_unfilled_stub_is_neither_right_nor_wrong(stub, capsys):
    assert helpers.check(stub, 1.0, "look again") is None
    assert capsys.readouterr().out == "not yet\n"


def test_check_accepts_a_boolean():
    assert helpers.check(True, True, "") is True
    assert helpers.check(False, True, "") is False


def test_leaderboard_returns_the_rank_of_your_answer(capsys):
    others = {"DAPO": 0.1, "DelTA": 0.3}
    assert helpers.leaderboard(0.2, others, "cosine") == 2
    assert helpers.leaderboard(torch.tensor(0.4), others, "cosine") == 1
    assert helpers.leaderboard(0.4, others, "error", lowest_first=True) == 3
    assert helpers.leaderboard(None, others, "cosine") is None
    assert "not yet" in capsys.readouterr().out
    assert helpers.leaderboard(float("nan"), others, "cosine") is None
    assert "not allowed" in capsys.readouterr().out


# ---- the blackboard ------------------------------------------------------------------------------


def test_blackboard_has_the_token_gradients_of_its_softmax():
    board = helpers.blackboard()
    logits = board.p.log().requires_grad_()
    for x, v in zip(board.token, board.v, strict=True):
        [gradient] = torch.autograd.grad(logits.log_softmax(0)[x], logits)
        assert torch.allclose(gradient, v, atol=1e-6)


def test_blackboard_gives_the_courses_round_numbers():
    board = helpers.blackboard()
    assert board.A.tolist() == [1.0, 1.0, -1.0, -1.0]
    assert torch.allclose((board.A[:, None] * board.v).sum(0), torch.tensor([0.0, 1.0, -1.0]))

    mu_pos, mu_neg, _, _ = side_centroids(board.v, board.A)
    assert torch.allclose(mu_pos, torch.tensor([0.0, 0.25, -0.25]))
    assert torch.allclose(mu_neg, -mu_pos)

    delta = margins(board.v, board.A, mu_pos, mu_neg)
    assert torch.allclose(delta, torch.tensor([0.0, 1.0, 0.0, 1.0]), atol=1e-6)
    assert [float(gamma) for gamma in temperatures(delta, board.A)] == pytest.approx([0.5, 0.5])

    lam = delta_coefficients(board.v, board.A, K=0)  # in the ratio 1 : 0.8 + 0.4 σ(2)
    high = 0.8 + 0.4 * torch.tensor(2.0).sigmoid()
    assert torch.allclose(lam / lam[0], torch.stack([torch.ones(()), high] * 2), atol=1e-5)


# ---- the toy -------------------------------------------------------------------------------------


def test_token_gradients_match_autograd_on_each_token_alone(base, batch):
    lm, _ = base
    some = batch.pick([0, 5])
    gradients = helpers.token_gradients(lm, some)
    logprob = Policy(lm).rows(some, torch.arange(2)).logprob
    assert len(gradients) == len(logprob)
    for i in (0, 3, len(logprob) - 1):
        parts = torch.autograd.grad(logprob[i], list(lm.parameters()), retain_graph=True)
        alone = torch.cat([part.flatten() for part in parts])
        assert torch.allclose(gradients[i], alone, atol=1e-4 * float(alone.abs().max()))


def test_source_shows_a_function_with_or_without_its_beginning():
    assert helpers.source(side_centroids).data.startswith("def side_centroids(\n")
    short = helpers.source(side_centroids, start="mu_pos, mu_neg = ").data.splitlines()
    assert short[:2] == ["def side_centroids(v, advantage, weight):", "    ..."]
    assert short[2].startswith("    mu_pos, mu_neg = ")
    assert short[-1] == "    return mu_pos, mu_neg, mass[0], mass[1]"
    with pytest.raises(ValueError):
        helpers.source(side_centroids, start="no such line")
