"""Estimates what one step with each weighting of the tokens is worth at one policy; trains nothing.

    python -m benchmarks gain --model FOLDER --data FILE --batches 64 --output-dir POLICY ...
    python -m benchmarks gain POLICY ...  # prints the tables of these folders
    python -m benchmarks gain  # prints the tables of results/gain.csv
    python -m benchmarks gain --picture FILE  # draws two columns of results/gain.csv

The first command takes the flags of train.py. Each row of a table is a weighting; --method, --proxy
and the flags of a method add a row. Batches and results are stored in --output-dir, so the same
command resumes after a kill. gain_rows.py defines the rows, gradients.py computes their gradients,
estimators.py defines the estimates, and gain_tables.py prints them. See docs/help.md.

Memory holds the gradients of some 12 parts of the rows in float32, and each block's sums of J and
of the entropy's gradient, in bfloat16 for a large model. On a CPU these sums stay in files, which
are read chunk by chunk. No tensor has a gradient for each batch.

Shapes: n batches in C blocks, N tokens of a batch, L lines of coefficients: J, entropy and W
rows; P parts of their gradients, D parameters, S sampled coordinates.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import torch

import ablations
import delta
import extensions
import methods
from benchmarks import estimators, known_credit
from benchmarks.gain_rows import BY_SIDE, FIRST, flags_of_rows, lines_of_batch
from benchmarks.gain_tables import draw, print_tables
from benchmarks.gradients import decomposed, gradients, products, sides, step_kls
from config import parse_config
from grpo import group_advantages
from infra.errors import UserError
from infra.flags import Parser, flag
from infra.folder import (
    UNFINISHED,
    claim,
    hash_of,
    identity_of,
    write_json,
    write_text,
    writing,
)
from infra.loading import load_model
from infra.micro_batches import MicroBatch
from infra.problems import encode_prompts, load_sets, prompt_flags
from infra.progress import Progress, Stopwatch
from infra.ranks import rank_and_world, start_ranks, this_device
from rollout import problems_of_step
from toy.by_name import model_folder
from train import Policy, Rollout, graded_groups

RESULT = "gain.csv"
FILES = (RESULT, "sampled-*", "direction-*", "measured-*")
OF_A_BATCH = ("prompts", "group_size", "max_new_tokens", "temperature", "overlong_buffer", "seed")
OF_A_BATCH += ("reward", "stop")
CODE = [
    Path(x.__file__) for x in (delta, methods, ablations, extensions, known_credit)
]  # of the weightings

BLOCKS = 16  # blocks of batches, for the jackknife
COORDINATES = 2**20
LARGE = 2**24  # parameters; a larger model's sums are stored in bfloat16
AT_ONCE = 8  # batches sampled together
CLIP = 1.0  # longest gradient that enters Adam's moments: the default of --max-grad-norm


@dataclass
class Size:
    """The flags beside those of train.py."""

    batches: int = flag(64, "independent rollout batches, at least 8", low=8, high=10**5)


def gain(args) -> None:
    """Measure the policy that the flags name, if its folder has no result yet. Print the tables."""
    folders = args.flags
    if not folders or folders[0] == "--picture":
        lines = pd.read_csv("results/gain.csv")
        policies = dict(list(lines.groupby("policy", sort=False)))
        if len(folders) == 1:
            raise UserError("--picture needs a file: --picture results/gain.png")
        if folders:
            draw(policies, Path(folders[1]))
            return
        for policy, own in policies.items():
            print_tables(policy, own)
        return
    if folders[0].startswith("-"):
        folders = [Study(folders).measure()]
    for folder in map(Path, folders):
        if not (folder / RESULT).exists():
            raise UserError(f"{folder} has no {RESULT}: run the command that measures it again")
        print_tables(folder.name, pd.read_csv(folder / RESULT))


def stored(path: Path, make: Callable, *arguments, device: torch.device | str = "cpu"):
    """The result of make(*arguments), from the file `path` if a run has stored it there.

    A kill leaves no half-written file. On a CPU, tensors are read only where they are used.
    """
    if not path.exists():
        aside = path.with_name(f"{path.name}.{UNFINISHED}")
        content = make(*arguments)
        with writing(path):
            torch.save(content, aside)
            os.replace(aside, path)
    return torch.load(path, weights_only=False, map_location=device, mmap=True)


class Study:
    """A policy's measurement. Each finished part is a file in its folder."""

    def __init__(self, words: list[str]):
        """Load the policy, and claim --output-dir. Raises UserError."""
        given, words = Parser(
            Size, "-m benchmarks gain", "All other flags are train.py's."
        ).parse_known_args(words)
        self.size = Size(**vars(given))
        n = self.size.batches
        self.block = torch.arange(n) * min(BLOCKS, n) // n  # of each batch
        blocks = range(int(self.block[-1]) + 1)
        self.own = [(self.block == c).nonzero().flatten().tolist() for c in blocks]
        self.cfg = cfg = replace(parse_config(["--mini-batch", "1", *words]), eval_data="")
        if cfg.dtype == "bfloat16":
            raise UserError("--dtype bfloat16: gain computes in float32, so leave the flag out")
        start_ranks()
        if rank_and_world()[1] > 1:
            raise UserError("gain runs in a single process: start it without torchrun")
        self.rows = flags_of_rows(cfg)
        lm, tokenizer = load_model(model_folder(cfg.model, cfg.toy_regime))
        problems, _ = load_sets(**cfg.sets)
        problems, prompts = encode_prompts(
            problems, tokenizer, cfg.max_prompt_tokens, *prompt_flags(cfg).values()
        )
        if len(problems) < len(self.own):
            raise UserError(
                f"--data {cfg.data} has {len(problems)} problems: gain needs one for each of its "
                f"{len(self.own)} blocks of batches"
            )
        self.policy = Policy(lm, cfg.temperature)
        self.run = SimpleNamespace(  # what graded_groups reads
            cfg=cfg, policy=self.policy, tokenizer=tokenizer, problems=problems, prompts=prompts
        )
        self.folder = Path(cfg.output_dir)

        flags = {name: getattr(cfg, name) for name in OF_A_BATCH} | vars(self.size)
        flags["rows"] = list(self.rows)
        flags["code of the methods"] = hash_of([path.read_text() for path in CODE])
        seen = {"problems": problems, "prompts": prompts}
        identity = identity_of("gain", flags, Path(lm.name_or_path), **seen)
        claim(self.folder, identity, FILES)
        write_json(self.folder / "config.json", identity)

    def measure(self) -> Path:
        """Write the result, if the folder has none. Returns the folder."""
        if (self.folder / RESULT).exists():
            return self.folder
        blocks = []
        with Progress("rows", len(self.own), "blocks") as progress:
            for c in range(len(self.own)):
                path = self.folder / f"measured-{c:02}.pt"
                blocks.append(stored(path, self.products_of_block, c))
                progress.update()
        write_text(self.folder / RESULT, self.result(blocks).to_csv(index=False))
        for path in self.folder.glob("direction-*.pt"):
            path.unlink()  # these files are large, and nothing reads them again
        return self.folder

    # ---- batches ---------------------------------------------------------------------------------

    @cached_property
    def batches(self) -> list[list[Rollout]]:
        """The n rollout batches. Raises UserError if no group has unequal rewards."""
        cfg, n = self.cfg, self.size.batches
        rollouts = []
        for start in range(0, n, AT_ONCE):
            together = range(start, min(start + AT_ONCE, n))
            rollouts += stored(self.folder / f"sampled-{start:05}.pt", self.sampled, together)
        rewards = torch.tensor([x.reward for x in rollouts])
        if not group_advantages(rewards, cfg.group_size).any():
            raise UserError(
                f"--data {cfg.data}: all rewards of each group are equal, with a mean of "
                f"{rewards.mean():.2f}, so there is no gradient: use other problems"
            )
        B = cfg.prompts * cfg.group_size
        return [rollouts[start : start + B] for start in range(0, n * B, B)]

    def sampled(self, together: range) -> list[Rollout]:
        """The responses of some batches, sampled together."""
        chosen = [i for b in together for i in self.problems_of(b)]
        return graded_groups(self.run, chosen, 1 + together.start, Stopwatch())

    def problems_of(self, b: int) -> list[int]:
        """The indices of batch b's problems, drawn from its block's own share of all problems."""
        c, C = int(self.block[b]), len(self.own)
        pool = range(c, len(self.run.problems), C)
        step = 1 + self.own[c].index(b)
        chosen = problems_of_step(len(pool), step, self.cfg.prompts, self.cfg.seed)
        return [pool[i] for i in chosen]

    def lines_of(self, b: int) -> tuple[list[MicroBatch], dict[str, torch.Tensor]]:
        """(the micro-batches of batch b, its lines: name -> coefficients [N])."""
        return lines_of_batch(self.policy, self.batches[b], self.rows, self.cfg, b)

    # ---- a block's gradients ---------------------------------------------------------------------

    @cached_property
    def directions(self) -> list[torch.Tensor]:
        """The sums of J and of the entropy's gradient over each block: C tensors [2, D]."""
        paths = [self.folder / f"direction-{c:02}.pt" for c in range(len(self.own))]
        device = this_device()
        return [stored(path, self.direction, c, device=device) for c, path in enumerate(paths)]

    def direction(self, c: int) -> torch.Tensor:
        """Computes the tensor of block c in `directions`, [2, D]."""
        total = 0
        for b in self.own[c]:
            micro_batches, lines = self.lines_of(b)
            both = torch.stack([lines["J"], lines["entropy"]])
            total = total + gradients(self.policy, micro_batches, both)
        return total.to(torch.bfloat16 if total.shape[1] > LARGE else torch.float32)

    @cached_property
    def coordinates(self) -> tuple[torch.Tensor, torch.Tensor]:
        J = sum(own[0].float() for own in self.directions)
        return estimators.sampled_coordinates(J, COORDINATES, self.cfg.seed)

    def products_of_block(self, c: int) -> dict:
        """What estimators.estimates needs of block c: inner products of gradients, and sums."""
        index, weight = self.coordinates
        grams, with_blocks, kls = [], [], []
        sums = squares = 0
        for b in self.own[c]:
            micro_batches, lines = self.lines_of(b)
            parts, mix = decomposed(
                torch.stack([*lines.values()]), torch.cat([sides(lines[name]) for name in BY_SIDE])
            )
            mix = mix.to(this_device())  # [L, P]
            g = gradients(self.policy, micro_batches, parts)  # [P, D]
            gram = mix @ products(g, [g]) @ mix.T  # [L, L]
            grams.append(gram)
            with_blocks.append((mix @ products(g, self.directions)).unflatten(1, (-1, 2)))
            norm = gram.diagonal()[FIRST:].clamp(min=0).sqrt()  # [W]
            states, _ = self.lines_of((b + 1) % self.size.batches)  # they share no noise with g
            kls.append(step_kls(self.policy, states, g, mix[FIRST:], norm))
            some = (mix @ g[:, index].double()).float()  # [L, S]
            clip = (CLIP / norm.clamp(min=1e-300)).clamp(max=1).float()[:, None]  # as train.py does
            J, rows = some[:1], clip * some[FIRST:]
            sums = sums + torch.cat([J, rows])  # [1 + W, S]
            squares = squares + rows.square()
        return {
            "names": list(lines)[FIRST:],
            "gram": torch.stack(grams).cpu(),
            "with_blocks": torch.stack(with_blocks).cpu(),
            "kl": torch.stack(kls),
            "sums": sums,
            "squares": squares,
            "weight": weight,
        }

    # ---- the result ------------------------------------------------------------------------------

    def result(self, blocks: list[dict]) -> pd.DataFrame:
        """A table of row, statistic and values: the estimate, then those without each block."""
        estimates = estimators.estimates(blocks, self.block, self.policy.lm.num_parameters())
        rewards = torch.tensor([x.reward for batch in self.batches for x in batch])
        groups = rewards.view(-1, self.cfg.group_size)
        facts = {
            "batches": self.size.batches,
            "responses in each": len(self.batches[0]),
            "mean reward": rewards.mean(),
            "of groups have both rewards": (groups != groups[:, :1]).any(dim=1).float().mean(),
            "parameters": self.policy.lm.num_parameters(),
            "coordinates for Adam": len(blocks[0]["weight"]),
        }
        lines = [("", name, f"{value:.6g}") for name, value in facts.items()]
        for statistic, values in estimates.items():
            for row, own in zip(blocks[0]["names"], values.T, strict=True):
                lines.append((row, statistic, " ".join(f"{x:.6g}" for x in own.tolist())))
        return pd.DataFrame(lines, columns=["row", "statistic", "values"])
