"""Train with your own token weights on the toy and compare with DAPO on the same seeds.

A pair is two runs of train.py's loop on one seed, DAPO's and yours. They share the base model,
problems and random numbers, so the first step's responses are identical. Each finished run is a
line in a CSV. A run in the CSV is not trained again, so a duel can be stopped at any time and
continued later.

Shapes: S seeds, N packed response tokens.
"""

import csv
import hashlib
import io
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from helpers import BLUE, GREY, ORANGE, LivePicture

import toy
import train
from infra.errors import Stop, UserError
from methods import METHODS, Method, token_weights
from studies.credit import batch
from studies.running import train_silently
from studies.statistics import half_width
from studies.tables import appending, read_csv

RESULTS = Path("duels.csv")  # next to the notebook
COLUMNS = ("weights", "print", "setting", "seed", "seconds", "rewards")


@dataclass(frozen=True)
class Setting:
    """A run's length and task: the regime `learn`, chains of five operations."""

    steps: int = 20
    rate: float = 3e-4
    prompts: int = 8
    group: int = 8

    @property
    def base(self) -> toy.base.Base:
        return toy.base.Base(k=5, noise=0.1, filler=1, regime="learn")

    @property
    def name(self) -> str:
        """The name in the CSV: `learn-k5-noise0.1-filler1-seed0, 20 steps of 8 x 8 at 0.0003`."""
        size = f"{self.steps} steps of {self.prompts} x {self.group}"
        return f"{self.base.name}, {size} at {self.rate}"

    @property
    def flags(self) -> str:
        """The flags for train.py, whose defaults suit the toy. There is no evaluation."""
        base = self.base
        return (
            f"--method dapo --toy-regime {base.regime} --toy-k {base.k} --toy-noise {base.noise} "
            f"--toy-filler {base.filler} --eval-data= --steps {self.steps} --lr {self.rate} "
            f"--prompts {self.prompts} --group-size {self.group} --save-every 1000"
        )

    def model(self):
        """The base model and its tokenizer."""
        base = self.base
        return toy.base_model(base.k, base.noise, base.filler, regime=base.regime)


# ---- one run -------------------------------------------------------------------------------------


def configured(setting: Setting, method: Method, *further: str) -> train.Config:
    """The configuration for a run with the method, including the clip range in its record."""
    cfg = train.parse_config([*setting.flags.split(), *further])
    cfg.clip_low, cfg.clip_high = method.default_clip
    return cfg


def trained(
    method: Method, setting: Setting, seed: int, heard: Callable[[list[float]], None]
) -> list[float]:
    """Train silently; returns the mean reward of each step's responses.

    heard: called after each step with the rewards so far. Raises Stop if Ctrl-C ended the run.
    """
    rewards = []

    def log(run, metrics: dict) -> None:
        """Replaces infra.log.log."""
        rewards.append(round(float(metrics["reward"]), 6))
        heard(rewards)

    with tempfile.TemporaryDirectory() as folder:
        cfg = configured(setting, method, "--seed", str(seed), "--output-dir", folder)
        train_silently(cfg, method, log=log)
    return rewards


def fingerprint(method: Method, setting: Setting, name: str = "yours") -> str:
    """Eight hex digits: a hash of what a method does: its ρ on a fixed batch, and its surrogate.

    Functions with equal weights have the same fingerprint. Changing a function, or a function that
    it calls, changes the fingerprint if the weights change. ρ is computed at θ_old and at a nearby
    policy, since a method may depend on the policy. Raises UserError if ρ is not one weight of at
    least 0 for each token.
    """
    lm, tokenizer = setting.model()
    asked = toy.problems(4, seed=90)
    tokens = batch(lm, tokenizer, asked, group=8, seed=91, keep=method.keep).tokens
    cfg = configured(setting, method)
    cfg.method = name  # for error messages
    seen = []
    for shift in (0.0, 0.1):
        signs = torch.arange(len(tokens.logprob)) % 3 - 1.0
        generator = torch.Generator().manual_seed(92)
        current = tokens.logprob + shift * signs
        asked = replace(tokens, current=current, generator=generator, memory={})
        seen.append(token_weights(method, asked, cfg))

    r = torch.linspace(0.5, 2.0, 16)
    for sign in (1.0, -1.0):
        A = torch.full_like(r, sign)
        seen.append(method.surrogate(r.log(), torch.zeros_like(r), A, cfg))
    numbers = np.round(torch.cat(seen).double().numpy(), 3) + 0.0  # no -0
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:8]


# ---- a duel --------------------------------------------------------------------------------------


@dataclass
class Duel:
    """The finished pairs, in the order of their seeds."""

    name: str  # name of your weights
    setting: Setting
    seeds: list[int] = field(default_factory=list)
    dapo: list[list[float]] = field(default_factory=list)  # [S, steps] mean reward of each step
    yours: list[list[float]] = field(default_factory=list)
    trained: int = 0  # runs trained in this call, not read from the CSV
    seconds: float = 0.0  # CPU time for all runs in these pairs

    @property
    def differences(self) -> np.ndarray:
        """[S] mean reward over all steps, yours minus DAPO's."""
        means = [np.mean(runs, axis=1) for runs in (self.yours, self.dapo) if runs]
        return means[0] - means[1] if means else np.array([])

    def line(self, student: str) -> str:
        """A student's line for the class CSV, whose columns are CLASS."""
        d = self.differences
        seeds = " ".join(map(str, self.seeds))
        numbers = (f"{d.mean():.4f}", f"{half_width(d):.4f}")
        line = io.StringIO()
        writer = csv.writer(line, lineterminator="")
        writer.writerow([student, self.name, self.setting.name, seeds, *numbers])
        return line.getvalue()


CLASS = ("student", "weights", "setting", "seeds", "difference", "half_width")


def students(
    setting: Setting, seeds: Sequence[int], path: Path = Path("class.csv")
) -> dict[str, float]:
    """Student and weights -> mean difference from DAPO, from the CSV; {} without the file.

    Raises UserError if a line's setting or seeds differ from the others.
    """
    found = {}
    wanted = (setting.name, " ".join(map(str, seeds)))
    for number, line in enumerate(read_csv(path, CLASS), start=2):
        if (line["setting"], line["seeds"]) != wanted:
            raise UserError(
                f"{path}, line {number}: {line['setting']}, seeds {line['seeds']}; the others are "
                f"of {wanted[0]}, seeds {wanted[1]}. Remove that line, or repeat its duel"
            )
        found[f"{line['student']}: {line['weights']}"] = float(line["difference"])
    return found


def duel(
    method: Method,
    name: str,
    seeds: Sequence[int],
    setting: Setting = Setting(),
    path: Path = RESULTS,
) -> Duel:
    """Train a pair on each seed, and draw during training; returns the pairs.

    Ctrl-C, or a notebook's stop button, ends training after the current step. Finished runs are
    kept, and the same call continues. Raises UserError for weights that cannot be trained with.
    """
    dapo = METHODS["dapo"]
    prints = {each: fingerprint(each, setting, name) for each in (dapo, method)}
    done = {}
    for line in read_csv(path, COLUMNS):
        done[line["print"], line["setting"], int(line["seed"])] = line
    found = Duel(name, setting)
    picture = LivePicture(f"Rewards of DAPO and of {name} by step, and their paired difference")

    try:
        with appending(path, COLUMNS) as write:
            for seed in seeds:
                lines = []
                for each, label in ((dapo, "DAPO"), (method, name)):
                    key = (prints[each], setting.name, seed)
                    if key not in done:
                        done[key] = run_line(each, label, key, found, picture, setting)
                        write([done[key]])
                        found.trained += 1
                    lines.append(done[key])
                add_pair(found, seed, lines)
    except (KeyboardInterrupt, Stop):
        print(f"stopped: {len(found.seeds)} of {len(seeds)} pairs are finished, in {path};")
        print("run the cell again to continue")
    picture.draw(draw, found)
    return found


def run_line(method: Method, label: str, key: tuple, found: Duel, picture, setting) -> dict:
    """Train one run, drawing as it goes, and return its line for the CSV."""
    seed = key[2]

    def heard(rewards: list[float]) -> None:
        if len(rewards) % 4 == 0:
            picture.draw(draw, found, rewards, f"{label}, seed {seed}")

    start = time.process_time()
    rewards = trained(method, setting, seed, heard)
    seconds = f"{time.process_time() - start:.1f}"
    cells = [label, *key, seconds, " ".join(map(str, rewards))]
    return dict(zip(COLUMNS, cells, strict=True))


def add_pair(found: Duel, seed: int, lines: list[dict]) -> None:
    """Add a seed's two lines, DAPO's and yours."""
    dapo, yours = ([float(x) for x in line["rewards"].split()] for line in lines)
    found.seeds.append(seed)
    found.dapo.append(dapo)
    found.yours.append(yours)
    found.seconds += sum(float(line["seconds"]) for line in lines)


# ---- the picture ---------------------------------------------------------------------------------


def draw(fig: plt.Figure, found: Duel, running: Sequence[float] = (), label: str = "") -> None:
    """Left: reward by step. Right: the paired difference and its 95 % interval, seed by seed."""
    curves, differences = fig.subplots(1, 2)
    sides = (("DAPO", found.dapo, GREY, "--"), (found.name, found.yours, BLUE, "-"))
    steps = np.arange(1, found.setting.steps + 1)
    for name, runs, colour, style in sides:
        for run in runs:
            curves.plot(steps, run, style, color=colour, lw=0.6, alpha=0.6)
        if runs:
            mean = np.mean(runs, axis=0)
            curves.plot(steps, mean, style, color=colour, lw=2.5, label=f"{name}, mean")
    if running:
        curves.plot(steps[: len(running)], running, color=ORANGE, lw=2, label=label)
    curves.set(xlabel="step", ylabel="mean reward", xlim=(1, found.setting.steps), ylim=(0, 1))
    curves.locator_params(axis="x", integer=True)
    if running or found.seeds:
        curves.legend(loc="upper left", fontsize=9)
    draw_intervals(differences, found.differences)


def draw_intervals(ax: plt.Axes, d: np.ndarray) -> None:
    """Each seed's difference, and the mean with its interval after 2, 3, ... of them."""
    ax.axhline(0, color=GREY, lw=1)
    ax.plot(range(1, len(d) + 1), d, "x", color=GREY, label="one seed")
    for n in range(2, len(d) + 1):
        label = "mean, 95 % interval" if n == 2 else None
        options = {"color": BLUE, "capsize": 5, "label": label}
        ax.errorbar(n + 0.12, d[:n].mean(), half_width(d[:n]), fmt="o", **options)
    ax.set(xlabel="pairs", ylabel="yours - DAPO, mean reward", xlim=(0.5, max(4, len(d)) + 0.5))
    ax.set_xticks(range(1, max(4, len(d)) + 1))
    if len(d):
        ax.legend(loc="best", fontsize=9)
