"""The places for the training studies: each has a task, a base model and first seeds.

Most are chains of 12 operations with rare errors. Credit matters most there, because a single token
makes a response of about 90 tokens wrong.
"""

from dataclasses import dataclass, field
from pathlib import Path

import toy

SIZE = "--prompts 16 --group-size 8 --mini-batch 4 --steps 28"


@dataclass(frozen=True)
class Setting:
    """A place for studies: a task, a base model, the length of a run, and the counted seeds."""

    k: int = 12  # operations
    noise: float = 0.06  # share of wrong results in the base model's demonstrations
    filler: int = 1  # connectives at the start of each step
    build: int = 0  # seed of the base model
    flip: float = 0.0  # share of the training rewards that are flipped
    tokens: int = 112  # maximum length of a response
    size: str = SIZE  # run size, and other flags for train.py
    seeds: dict[str, int] = field(default_factory=dict)  # study -> the first counted seed
    regime: str = "sharpen"  # how the base model errs
    zipf: bool = False  # a large vocabulary of connectives
    code: bool = False  # the code toy, which ignores the fields for chains
    tested: int = 0  # operations in held-out problems; 0: as in training
    tested_tokens: int = 0  # maximum length of a response to these; 0: as in training

    @property
    def flags(self) -> str:
        """The flags for train.py, except `build` and `flip`. `size` may turn evaluation on."""
        if self.code:
            return f"--model toy-code --eval-data= --save-every 1000 {self.size}"
        zipf = "--toy-zipf " if self.zipf else ""
        return (
            f"--toy-regime {self.regime} --toy-k {self.k} --toy-noise {self.noise} "
            f"--toy-filler {self.filler} {zipf}--eval-data= "
            f"--max-prompt-tokens 40 --max-new-tokens {self.tokens} --save-every 1000 {self.size}"
        )

    def base(self) -> Path:
        """The folder of the base model, built if it is neither committed nor cached."""
        if self.code:
            return toy.code_base_folder()
        return toy.base_folder(self.k, self.noise, self.filler, self.build, self.regime, self.zipf)


STUDY = "k12"
SETTINGS = {
    STUDY: Setting(seeds={"methods": 5, "confirm": 21, "curves": 61, "surprise": 201, "mean": 501}),
    "k12, more errors": Setting(noise=0.1, seeds={"bases": 201}),
    "k12, another base": Setting(build=1, seeds={"confirm": 21}),
    "flipped 10 %": Setting(flip=0.1, seeds={"noise": 41}),
    "flipped 20 %": Setting(flip=0.2, seeds={"noise": 41}),
    "often wrong": Setting(noise=0.4, seeds={"noise": 41}),  # one demonstration in five is right
    "often right": Setting(noise=0.01, seeds={"noise": 41}),  # nine in ten are right
    "k5, filler 0": Setting(k=5, noise=0.2, filler=0, tokens=38, seeds={"noise": 41}),
    "k5, filler 4": Setting(
        k=5, noise=0.2, filler=4, tokens=58, seeds={"confirm": 21, "noise": 41}
    ),
    "k16": Setting(k=16, noise=0.05, tokens=148, seeds={"confirm": 21}),  # about as often right
    "learn, k12": Setting(noise=0.02, regime="learn", seeds={"surprise": 201, "mean": 501}),
    "learn minus": Setting(
        k=5, noise=0.1, tokens=44, regime="learn-minus", seeds={"surprise": 201, "mean": 501}
    ),
    "learn, filler 4": Setting(
        k=5,
        noise=0.1,
        filler=4,
        tokens=58,
        regime="learn",
        seeds={"surprise": 201, "learn": 301, "mean": 501},
    ),
    "learn, Zipf": Setting(
        k=5,
        noise=0.1,
        filler=4,
        tokens=58,
        regime="learn",
        zipf=True,
        seeds={"surprise": 211, "mean": 501},
    ),
    "learn, long": Setting(  # 85 connectives among 120 tokens
        k=5, noise=0.1, filler=17, tokens=124, regime="learn", seeds={"surprise": 201, "mean": 501}
    ),
    "learn, filler 4, 110 steps": Setting(
        k=5,
        noise=0.1,
        filler=4,
        tokens=58,
        size=SIZE.replace("28", "110"),
        regime="learn",
        seeds={"longer": 401},
    ),
    "learn, filler 4, 110 steps, 6 operations": Setting(  # 5 in training
        k=5,
        noise=0.1,
        filler=4,
        tokens=58,
        size=SIZE.replace("28", "110"),
        regime="learn",
        tested=6,
        tested_tokens=69,
        seeds={"mean, longer": 521},
    ),
    "programs": Setting(
        tokens=32, size=SIZE.replace("28", "100"), code=True, seeds={"longer": 401}
    ),
    "k5, 160 steps": Setting(
        k=5, noise=0.2, tokens=64, size="--eval-data toy-held-out", seeds={"seeds": 0}
    ),
    "make train": Setting(  # evaluated only before and after training
        k=5,
        noise=0.1,
        tokens=64,
        size="--eval-data toy-held-out --eval-every 160",
        seeds={"make_train": 0},
        regime="learn",
    ),
}


def places(study: str) -> dict[str, int]:
    """Setting -> first counted seed, for all settings in a study."""
    return {name: each.seeds[study] for name, each in SETTINGS.items() if study in each.seeds}


PLACES = places("surprise")
LEARN = {place: first for place, first in PLACES.items() if SETTINGS[place].regime != "sharpen"}
