"""The settings of the runs on the toy: a task, a base model and a run's length."""

from dataclasses import dataclass
from pathlib import Path

import toy

SIZE = "--prompts 16 --group-size 8 --mini-batch 4 --steps 28"


@dataclass(frozen=True)
class Setting:
    """A setting of benchmarks/direction.py, which evaluates after training."""

    k: int = 12  # operations
    noise: float = 0.06  # share of random results in the base model's demonstrations
    filler: int = 1  # connectives at the start of each step
    regime: str = "sharpen"  # how the base model errs
    zipf: bool = False  # a large vocabulary of connectives
    tokens: int = 112  # maximum length of a response
    size: str = SIZE

    @property
    def flags(self) -> str:
        """The flags for train.py."""
        zipf = "--toy-zipf " if self.zipf else ""
        return (
            f"--toy-regime {self.regime} --toy-k {self.k} --toy-noise {self.noise} "
            f"--toy-filler {self.filler} {zipf}--eval-data= "
            f"--max-prompt-tokens 40 --max-new-tokens {self.tokens} --save-every 1000 {self.size}"
        )

    def base(self) -> Path:
        """The folder of the base model."""
        return toy.base_folder(self.k, self.noise, self.filler, 0, self.regime, self.zipf)


FOUR = {"k": 5, "noise": 0.1, "filler": 4, "tokens": 58, "regime": "learn"}
