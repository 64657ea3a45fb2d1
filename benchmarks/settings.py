"""The settings of the training studies: each is a task, a base model and a run's length.

Most are chains of 12 operations with rare errors. Credit matters most there, because a single token
makes a response of about 90 tokens wrong. The names are those in results/*.csv.
"""

from dataclasses import dataclass
from pathlib import Path

import toy

SIZE = "--prompts 16 --group-size 8 --mini-batch 4 --steps 28"


@dataclass(frozen=True)
class Setting:
    """A setting of a training study."""

    k: int = 12  # operations
    noise: float = 0.06  # share of random results in the base model's demonstrations
    filler: int = 1  # connectives at the start of each step
    regime: str = "sharpen"  # how the base model errs
    zipf: bool = False  # a large vocabulary of connectives
    tokens: int = 112  # maximum length of a response
    size: str = SIZE  # run size, and other flags for train.py
    tested: int = 0  # operations in held-out problems; 0: as in training
    tested_tokens: int = 0  # maximum length of a response to these; 0: as in training

    @property
    def flags(self) -> str:
        """The flags for train.py. `size` may turn evaluation on."""
        zipf = "--toy-zipf " if self.zipf else ""
        return (
            f"--toy-regime {self.regime} --toy-k {self.k} --toy-noise {self.noise} "
            f"--toy-filler {self.filler} {zipf}--eval-data= "
            f"--max-prompt-tokens 40 --max-new-tokens {self.tokens} --save-every 1000 {self.size}"
        )

    def base(self) -> Path:
        """The folder of the base model."""
        return toy.base_folder(self.k, self.noise, self.filler, 0, self.regime, self.zipf)


STUDY = "k12"
MAKE_TRAIN = "make train"
LONG = "learn, long"  # 85 connectives among 120 tokens
LONGER = "learn, filler 4, 110 steps, 6 operations"  # 5 in training
FOUR = {"k": 5, "noise": 0.1, "filler": 4, "tokens": 58, "regime": "learn"}

SETTINGS = {
    STUDY: Setting(),
    "learn, k12": Setting(noise=0.02, regime="learn"),
    "learn minus": Setting(k=5, noise=0.1, tokens=44, regime="learn-minus"),
    "learn, filler 4": Setting(**FOUR),
    "learn, Zipf": Setting(**FOUR, zipf=True),
    LONG: Setting(k=5, noise=0.1, filler=17, tokens=124, regime="learn"),
    LONGER: Setting(**FOUR, size=SIZE.replace("28", "110"), tested=6, tested_tokens=69),
    MAKE_TRAIN: Setting(  # evaluated only before and after training
        k=5,
        noise=0.1,
        tokens=64,
        regime="learn",
        size="--eval-data toy-held-out --eval-every 160",
    ),
}
