"""What is one step with each weighting of the tokens worth, at one policy? No training.

    python -m benchmarks gain --model FOLDER --data FILE --batches 64 --output-dir POLICY ...
    python -m benchmarks gain POLICY ...  # the tables of such folders; else of results/gain.csv
    python -m benchmarks gain --picture FILE  # two of its columns, of text and the toy

The first takes the flags of train.py. --method, --proxy and the flags of a method add a row.
Batches and results are stored in --output-dir: after a kill the same command goes on. Definitions:
benchmarks/estimators.py. Protocol and results: docs/results/gain.md.

Memory: the gradients of some 12 parts of the rows in float32; and the sums of J and of the
entropy's gradient over each block of batches, in bfloat16 for a large model. These are in files,
which are read chunk by chunk on a CPU. No tensor has a gradient for each batch.

Shapes: n batches in C blocks, N tokens of a batch, L lines of coefficients: J, entropy and W
rows; D parameters, S sampled coordinates.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import torch
from matplotlib.figure import Figure

import toy
import train
from benchmarks import estimators
from benchmarks.estimators import decomposed, jackknife_error, products, sides
from benchmarks.statistics import critical_t, holm, two_sided_p
from benchmarks.tables import print_table
from config import Config, parse_config, selected_method
from grpo import group_advantages, overlong_penalty
from infra.errors import UserError
from infra.flags import Parser, flag, spelled
from infra.folder import UNFINISHED, claim, identity_of, write_json, write_text, writing
from infra.loading import decoder_of, load_model
from infra.micro_batches import MicroBatch, mini_batches
from infra.problems import encode_prompts, load_sets, prompt_flags
from infra.progress import Progress, Stopwatch
from infra.ranks import rank_and_world, start_ranks, this_device
from infra.shared_prompts import shares_prompts
from methods import TokenBatch, dapo_surrogate, packed
from rollout import draw_indices
from toy.by_name import model_folder
from train import Policy, Rollout, pass_at_theta_old

COLUMNS = ("row", "statistic", "values")
RESULT = "gain.csv"
FILES = (RESULT, "sampled-*", "direction-*", "measured-*")  # and those of a training run
FILES += ("metrics.jsonl", "model", "checkpoint-*")
METHODS = {  # row -> flags of train.py
    "dapo": "--method dapo",
    "delta": "",
    "delta, K = 0": "--K 0",
    "scalar": "--proxy scalar",
    "sure, sure": "--method sure_sure",
    "unsure, unsure": "--method unsure_unsure",
    "unsure, sure": "--method unsure_sure",
    "sure, unsure": "--method sure_unsure",
    "AR": "--method reweighting",
    "random": "--delta-variant random",
}
BY_SIDE = ("dapo", "delta", "sure, sure")  # rows whose sides give others
ADAM = "rate, with Adam"
PRIMARY = ("tokens only", "two constants", "delta")  # each against dapo, with Adam
FIRST = 2  # the line of the first row, dapo; J and entropy come before
OF_A_BATCH = ("prompts", "group_size", "max_new_tokens", "temperature", "overlong_buffer", "seed")
OF_A_BATCH += ("reward", "stop")

BLOCKS = 16  # of batches, for the jackknife
COORDINATES = 2**20
LARGE = 2**24  # parameters; a larger model's sums are stored in bfloat16
AT_ONCE = 8  # batches sampled together
CLIP = 1.0  # of a gradient's length, before Adam's moments: --max-grad-norm
LENGTH = 1e-3  # of the step whose change of log π is measured
UPDATES = 24  # of the run whose distance is held equal
SEEN = 2  # errors by which dapo's own gain must be above 0


@dataclass
class Size:
    """The flags beside those of train.py."""

    batches: int = flag(64, "independent rollout batches; an error needs 8", low=8, high=10**5)


def gain(args) -> None:
    """Measure the policy that the flags name, unless its folder has the result; print tables."""
    folders = args.flags
    if not folders or folders[0] == "--picture":
        policies = dict(list(pd.read_csv("results/gain.csv").groupby("policy", sort=False)))
        if folders:
            draw(policies, Path(folders[1]))
            return
        for policy, lines in policies.items():
            print_tables(policy, lines[list(COLUMNS)])
        return
    if folders[0].startswith("-"):
        folders = [Study(folders).measure()]
    for folder in map(Path, folders):
        if not (folder / RESULT).exists():
            raise UserError(f"{folder} has no {RESULT}: run its command again")
        print_tables(folder.name, pd.read_csv(folder / RESULT))


# ---- coefficients --------------------------------------------------------------------------------


def keep_masses(weight: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """ρ [N] scaled on each side to DAPO's mass Σ|A|."""
    weight = weight.clone()
    for side in (advantage > 0, advantage < 0):
        mass = advantage[side].abs()
        weight[side] *= mass.sum() / (weight[side] * mass).sum()
    return weight


def derived_weights(lam: torch.Tensor, advantage: torch.Tensor) -> dict[str, torch.Tensor]:
    """The rows that need no method, given DelTA's weights [N]."""
    of_sides = lam.clone()
    for side in (advantage > 0, advantage < 0):
        of_sides[side] = lam[side].mean()
    constants = torch.where(advantage > 0, 1.1, 0.9)
    return {
        "tokens only": keep_masses(lam, advantage),
        "sides only": of_sides,
        "two constants": constants,
        "inverse constants": 2 - constants,
    }


def oracle_weights(rollouts: list[Rollout], advantage: torch.Tensor) -> torch.Tensor:
    """1.2 for the tokens that decided the toy's reward, 0.8 for all others, with DAPO's masses."""
    marks = [
        toy.decisive(x.problem["problem"], torch.from_numpy(x.response.tokens)) for x in rollouts
    ]
    decisive = torch.cat(marks).to(advantage.device)
    return keep_masses(torch.where(decisive, 1.2, 0.8), advantage)


def own_row(cfg: Config) -> dict[str, Config]:
    """The row of the flags, by its name, if a method's flags differ from their defaults."""
    own = [x for x in fields(Config) if x.name == "method" or x.metadata["method"]]
    changed = [x.name for x in own if getattr(cfg, x.name) != x.default]
    name = " ".join(f"{spelled(x)} {getattr(cfg, x)}" for x in changed)
    if selected_method(cfg).surrogate is not dapo_surrogate:
        name += " (its weights alone)"
    return {name: cfg} if changed else {}


def coefficients(tokens: TokenBatch, rows: torch.Tensor, G: int) -> torch.Tensor:
    """What multiplies ∇log π of each token in each line: rows ρ [W, N] -> [L, N].

    J has A = R - the mean of the group's other rewards, over B: unbiased for the gradient of
    expected reward. Entropy has -(log p + H) / N, whose mean over the token's draw is the gradient
    of H / N at its state; how the policy moves the states is left out.
    """
    A, N = tokens.advantage, len(tokens)
    R = tokens.reward.view(-1, G)
    above = (R - R.mean(dim=1, keepdim=True)) * G / (G - 1) / R.numel()
    J = above.flatten().repeat_interleave(tokens.length)
    entropy = -(tokens.old_logprob + tokens.entropy) / N
    return torch.cat([torch.stack([J, entropy]), rows * A / N])


def gradients(policy, micro_batches: list[MicroBatch], parts: torch.Tensor) -> torch.Tensor:
    """Σ_t part_t ∇log π_t of each part: [P, N] -> [P, D] float32. One forward pass for all."""
    parameters = list(policy.parameters())
    sizes = [x.numel() for x in parameters]
    parts = parts.float().to(this_device())
    total = torch.zeros(len(parts), sum(sizes), device=this_device())
    for micro in micro_batches:
        own = parts[:, micro.token_index]  # [P, n]
        wanted = own.any(dim=1).nonzero().flatten().tolist()
        logprob = policy(micro.ids, micro.mask).logprob if wanted else None
        for p in wanted:
            again = {"retain_graph": p != wanted[-1], "materialize_grads": True}
            found = torch.autograd.grad(logprob, parameters, own[p], **again)
            for place, gradient in zip(total[p].split(sizes), found, strict=True):
                place += gradient.flatten()
    return total


@torch.no_grad()
def step_kls(
    policy,
    micro_batches: list[MicroBatch],
    parts: torch.Tensor,
    mix: torch.Tensor,
    norm: torch.Tensor,
) -> torch.Tensor:
    """KL(π ‖ π after a step of unit length) along each row's gradient, to second order: [W].

    The mean of (⟨∇log π_t, g⟩ / ‖g‖)² / 2 over the tokens of micro_batches, which π drew. The inner
    product is the change of log π_t by a step of LENGTH. parts [P, D], mix [W, P]: the rows' g.
    """
    parameters = list(policy.parameters())
    sizes = [x.numel() for x in parameters]

    def logprobs() -> torch.Tensor:
        return torch.cat([policy(micro.ids, micro.mask).logprob for micro in micro_batches])

    before = logprobs().double()  # [n]
    found = []
    kept = [x.clone() for x in parameters]
    for own, length in zip(mix, norm, strict=True):
        step = (own.to(parts) @ parts) * float(LENGTH / length.clamp(min=1e-300))  # [D]
        for place, change in zip(parameters, step.split(sizes), strict=True):
            place += change.view_as(place)
        slope = (logprobs().double() - before) / LENGTH
        found.append(slope.square().mean() / 2)
        for place, old in zip(parameters, kept, strict=True):
            place.copy_(old)
    return torch.stack(found).cpu()


# ---- a measurement -------------------------------------------------------------------------------


def stored(path: Path, make: Callable, *arguments, device: torch.device | str = "cpu"):
    """What make(*arguments) returned, in the file `path`; a kill leaves no half file there."""
    if not path.exists():
        content = make(*arguments)
        aside = path.with_name(f"{path.name}.{UNFINISHED}")
        with writing(path):
            torch.save(content, aside)
            os.replace(aside, path)
        if torch.device(device).type != "cpu":
            return content
    on_host = torch.device(device).type == "cpu"
    return torch.load(path, weights_only=False, map_location=device, mmap=on_host)


class Study:
    """A policy's measurement. Files in its folder say how far it is."""

    def __init__(self, words: list[str]):
        """Load the policy, and claim --output-dir. Raises UserError."""
        given, words = Parser(Size, "-m benchmarks gain", "").parse_known_args(words)
        self.size = Size(**vars(given))
        n = self.size.batches
        self.block = torch.arange(n) * min(BLOCKS, n) // n  # of each batch
        blocks = range(int(self.block[-1]) + 1)
        self.own = [(self.block == c).nonzero().flatten().tolist() for c in blocks]
        self.cfg = cfg = replace(parse_config(["--mini-batch", "1", *words]), eval_data="")
        if cfg.dtype == "bfloat16":
            raise UserError("gain is in float32: drop --dtype")
        start_ranks()
        if rank_and_world()[1] > 1:
            raise UserError("gain has one rank: start it without torchrun")
        self.methods = {name: parse_config(flags.split()) for name, flags in METHODS.items()}
        self.methods |= own_row(cfg)
        lm, tokenizer = load_model(model_folder(cfg))
        problems, _ = load_sets(cfg)
        problems, prompts = encode_prompts(
            problems, tokenizer, cfg.max_prompt_tokens, *prompt_flags(cfg).values()
        )
        if len(problems) < len(self.own):
            raise UserError(
                f"--data {cfg.data} has {len(problems)} problems: gain needs one for each of its "
                f"{len(self.own)} blocks of batches"
            )
        self.policy = Policy(lm, cfg.temperature)
        self.run = SimpleNamespace(  # what train.graded_groups reads
            cfg=cfg, policy=self.policy, tokenizer=tokenizer, problems=problems, prompts=prompts
        )
        self.folder = Path(cfg.output_dir)

        flags = {name: getattr(cfg, name) for name in OF_A_BATCH} | vars(self.size)
        flags["rows"] = list(self.methods)
        seen = {"problems": self.run.problems, "prompts": self.run.prompts}
        identity = identity_of("gain", flags, Path(lm.name_or_path), **seen)
        claim(self.folder, identity, FILES, Config)
        write_json(self.folder / "config.json", identity)

    def measure(self) -> Path:
        """Write the result, if the folder has none. Returns the folder."""
        if (self.folder / RESULT).exists():
            return self.folder
        results = []
        with Progress("rows", len(self.own), "blocks") as progress:
            for c in range(len(self.own)):
                path = self.folder / f"measured-{c:02}.pt"
                results.append(stored(path, self.rows_of_block, c))
                progress.update()
        lines = pd.DataFrame(self.estimates(results), columns=COLUMNS)
        write_text(self.folder / RESULT, lines.to_csv(index=False))
        for path in self.folder.glob("direction-*.pt"):
            path.unlink()  # large, and needed no more
        return self.folder

    @cached_property
    def batches(self) -> list[list[Rollout]]:
        """The n rollout batches. Raises UserError if no group has unequal rewards."""
        cfg, run, found = self.cfg, self.run, []
        C = len(self.own)

        def chosen(b: int) -> list[int]:
            """The problems of batch b: of its block's own C-th of the pool."""
            c = int(self.block[b])
            pool = range(c, len(run.problems), C)
            first = self.own[c].index(b) * cfg.prompts
            return [pool[i] for i in draw_indices(len(pool), first, cfg.prompts, cfg.seed)]

        def sampled(start: int, count: int) -> list[Rollout]:
            problems = [i for b in range(start, start + count) for i in chosen(b)]
            return train.graded_groups(run, problems, 1 + start, Stopwatch())

        for start in range(0, self.size.batches, AT_ONCE):
            count = min(AT_ONCE, self.size.batches - start)
            rollouts = stored(self.folder / f"sampled-{start:05}.pt", sampled, start, count)
            size = len(rollouts) // count
            found += [rollouts[i : i + size] for i in range(0, len(rollouts), size)]
        rewards = torch.tensor([x.reward for batch in found for x in batch])
        if not group_advantages(rewards, cfg.group_size).any():
            raise UserError(
                f"--data {cfg.data}: all rewards of each group are equal, with a mean of "
                f"{rewards.mean():.2f}: there is no gradient: take other problems"
            )
        return found

    def prepared(self, b: int) -> tuple[list[MicroBatch], torch.Tensor]:
        """Batch b: (micro-batches, coefficients [L, N])."""
        cfg, rollouts = self.cfg, self.batches[b]
        reward = torch.tensor([x.reward for x in rollouts])
        responses = [x.response for x in rollouts]
        length = torch.tensor([len(x.tokens) for x in responses])
        reward += overlong_penalty(length, cfg.max_new_tokens, cfg.overlong_buffer)
        advantages = group_advantages(reward, cfg.group_size)
        together = shares_prompts(decoder_of(self.policy.lm))
        limit = cfg.micro_batch_tokens
        (plan,) = mini_batches(responses, advantages, len(responses), limit, together)
        methods = {name: selected_method(own) for name, own in self.methods.items()}
        passes = {}  # a method's proxy -> (log π_old, entropy, v)
        for method in methods.values():
            if method.features and method.features not in passes:
                passes[method.features] = pass_at_theta_old(self.policy, [plan], method)
        old_logprob, entropy, _ = next(iter(passes.values()))
        tokens = packed(responses, reward, advantages, old_logprob, entropy, (cfg.seed, b))
        rows = {}
        for name, own in self.methods.items():
            _, _, v = passes.get(methods[name].features, (None, None, None))
            rows[name] = methods[name].checked_weights(tokens, v, own)
        rows |= derived_weights(rows["delta"], tokens.advantage)
        if cfg.data == "toy":
            rows["oracle"] = oracle_weights(rollouts, tokens.advantage)
        self.names = list(rows)
        rows = torch.stack(list(rows.values()))  # [W, N]
        return plan.micro_batches, coefficients(tokens, rows, cfg.group_size)

    @cached_property
    def directions(self) -> list[torch.Tensor]:
        """The sums of J and of the entropy's gradient over each block: C of [2, D]."""

        def sums(c: int) -> torch.Tensor:
            total = 0
            for b in self.own[c]:
                micro_batches, lines = self.prepared(b)
                total = total + gradients(self.policy, micro_batches, lines[:2])
            return total.to(torch.bfloat16 if total.shape[1] > LARGE else torch.float32)

        paths = [self.folder / f"direction-{c:02}.pt" for c in range(len(self.own))]
        return [stored(path, sums, c, device=this_device()) for c, path in enumerate(paths)]

    @cached_property
    def coordinates(self) -> tuple[torch.Tensor, torch.Tensor]:
        J = sum(own[0].float() for own in self.directions)
        return estimators.sampled_coordinates(J, COORDINATES, self.cfg.seed)

    def rows_of_block(self, c: int) -> dict:
        """Products of the block's lines with each other and with the directions, and sums."""
        index, weight = self.coordinates
        found = {"gram": [], "with_blocks": [], "kl": []}
        sums = squares = 0
        for b in self.own[c]:
            micro_batches, lines = self.prepared(b)
            states, _ = self.prepared((b + 1) % self.size.batches)  # its tokens share no noise
            places = [FIRST + self.names.index(name) for name in BY_SIDE]
            parts, mix = decomposed(lines, torch.cat([sides(lines[place]) for place in places]))
            mix = mix.to(this_device())
            g = gradients(self.policy, micro_batches, parts)  # [P, D]
            found["gram"].append(mix @ products(g, [g]) @ mix.T)  # [L, L]
            found["with_blocks"].append((mix @ products(g, self.directions)).unflatten(1, (-1, 2)))
            norm = found["gram"][-1].diagonal()[FIRST:].clamp(min=0).sqrt()  # [W]
            found["kl"].append(step_kls(self.policy, states, g, mix[FIRST:], norm))
            some = (mix @ g[:, index].double()).float()  # [L, S]
            clip = (CLIP / norm.clamp(min=1e-300)).clamp(max=1).float()[:, None]  # as train.py does
            J, some = some[:1], clip * some[FIRST:]
            sums = sums + torch.cat([J, some])  # [1 + W, S]
            squares = squares + some.square()
        found = {name: torch.stack(values).cpu() for name, values in found.items()}
        return found | {"sums": sums, "squares": squares, "weight": weight, "names": self.names}

    def estimates(self, results: list[dict]) -> list[tuple]:
        """(row, statistic, values): values[0] is the estimate, then those without each block."""
        gram, with_blocks, kl = (
            torch.cat([each[name] for each in results]) for name in ("gram", "with_blocks", "kl")
        )  # [n, L, L], [n, L, C, 2], [n, W]
        sums, squares = (
            torch.stack([each[name].to(this_device()) for each in results])
            for name in ("sums", "squares")
        )  # [C, 1 + W, S], [C, W, S]
        weight, block = results[0]["weight"].to(this_device()), self.block
        norm = gram.diagonal(dim1=1, dim2=2)[:, FIRST:].clamp(min=0).sqrt()  # [n, W]
        found = {}
        for place, name in enumerate(("gain", "entropy")):
            own = gram[:, place, FIRST:]
            of_rows = with_blocks[:, FIRST:, :, place]
            found[name] = estimators.step_gains(of_rows, own, norm, block)
        found["kl"] = estimators.means(kl, block)
        found["noise"], found["bias"] = estimators.noise_and_bias(sums, weight, norm, block)
        found["adam"], groups = estimators.adam_gains(sums, squares, weight, block)
        if len(weight) < self.policy.lm.num_parameters():
            found["adam by coordinates"] = groups
        lines = [("", name, f"{value:.6g}") for name, value in self.facts(len(weight)).items()]
        for statistic, values in found.items():
            for row, own in zip(results[0]["names"], values.T, strict=True):
                lines.append((row, statistic, " ".join(f"{x:.6g}" for x in own.tolist())))
        return lines

    def facts(self, coordinates: int) -> dict[str, float]:
        """What was measured."""
        rewards = torch.tensor([[x.reward for x in batch] for batch in self.batches])
        groups = rewards.view(-1, self.cfg.group_size)
        mixed = (groups != groups[:, :1]).any(dim=1).float().mean()
        return {
            "batches": len(rewards),
            "responses in each": rewards.shape[1],
            "mean reward": rewards.mean(),
            "of groups have both rewards": mixed,
            "parameters": self.policy.lm.num_parameters(),
            "coordinates for Adam": coordinates,
        }


# ---- tables --------------------------------------------------------------------------------------


def print_tables(policy: str, lines: pd.DataFrame) -> None:
    """Print one policy's tables."""
    is_fact = lines["row"].isna()
    facts = zip(lines["values"][is_fact], lines["statistic"][is_fact], strict=True)
    print(f"**{policy}**: {', '.join(map(' '.join, facts))}\n")
    values = values_of(lines)
    if not is_seen(values):
        print("dapo's own gain is not above 0 by two errors: take more batches or easier data\n")
        return

    columns = held_equal(values)
    cells = []
    for row in values["gain"]:
        line = [row, *(compared(column, values, row) for column in columns.items())]
        for name in ("noise", "bias"):
            x = values[name][row]
            line.append(f"{x[0]:.3f} ± {reach(x):.3f}")
        cells.append(line)
    print_table(["held equal", *columns, "noise / signal", "cosine"], cells)

    tests = {}  # t-tests over blocks
    for row in PRIMARY:
        difference, half = above_dapo((ADAM, columns[ADAM]), values, row)
        degrees = len(values["adam"][row]) - 2
        tests[row] = two_sided_p(difference / half * critical_t(0.05, degrees), degrees)
    corrected = [f"{row} {p:.2g}" for row, p in holm(tests).items()]
    print(f"p with Adam, Holm over {len(tests)}: {', '.join(corrected)}\n")


def held_equal(values: dict) -> dict[str, dict[str, torch.Tensor]]:
    """What is held equal -> row -> its gain [1 + C], in any unit; of these only ratios count.

    A gain is the rise of expected reward, to first order, by a step along g. The mean of k batches
    has the noise / k, so its cosine with J is `bias` / sqrt(1 + noise / k). In a run of UPDATES
    steps at one policy the gradients add up, and the way travelled is the length of their sum.
    """
    gain, noise, bias = values["gain"], values["noise"], values["bias"]

    def of_batch(k: int) -> dict[str, torch.Tensor]:
        return {row: bias[row] / (1 + noise[row] / k).sqrt() for row in gain}

    columns = {
        "length of a step": gain,
        ADAM: values["adam"],
        "length, 1 times the batch": of_batch(1),  # that of the first column, by the noise
        "length, 8 times the batch": of_batch(8),
        f"way of {UPDATES} steps": of_batch(UPDATES),
    }
    if "kl" in values:  # a KL is of second order in the step's length
        columns["KL"] = {row: gain[row] / values["kl"][row].sqrt() for row in gain}
    columns["entropy lost"] = {row: gain[row] / values["entropy"][row] for row in gain}
    return columns


def is_seen(values: dict) -> bool:
    """Whether dapo's own gain is above 0: else per cents of it say nothing."""
    base = values["gain"]["dapo"]
    return bool(base[0] >= SEEN * jackknife_error(base))


def values_of(lines: pd.DataFrame) -> dict[str, dict[str, torch.Tensor]]:
    """Statistic -> row -> values, of one policy's lines."""
    values = {}
    for row, statistic, text in lines[~lines["row"].isna()].itertuples(index=False):
        numbers = torch.tensor([float(x) for x in text.split()], dtype=torch.float64)
        values.setdefault(statistic, {})[row] = numbers
    return values


def reach(values: torch.Tensor) -> float:
    """Half the width of the 95 % interval of values[0], from the values without each block."""
    return critical_t(0.05, len(values) - 2) * float(jackknife_error(values))


def above_dapo(column: tuple[str, dict], values: dict, row: str) -> tuple[float, float]:
    """(how much a row gains above dapo in a column of held_equal, its 95 %), in per cent."""
    name, gains = column
    ratio = gains[row] / gains["dapo"]
    half = reach(ratio)
    if name == ADAM and "adam by coordinates" in values:
        groups = values["adam by coordinates"]
        variance = estimators.sampling_variance(groups[row], groups["dapo"])
        half = math.hypot(half, critical_t(0.05, len(ratio) - 2) * float(variance.sqrt()))
    return 100 * float(ratio[0] - 1), 100 * half


def compared(column: tuple[str, dict], values: dict, row: str) -> str:
    """A cell of a table; empty for dapo itself."""
    if row == "dapo":
        return ""
    return "{:+.1f} ± {:.1f}".format(*above_dapo(column, values, row))


# ---- a picture -----------------------------------------------------------------------------------


def draw(policies: dict[str, pd.DataFrame], path: Path) -> None:
    """Draw what DelTA gains above DAPO at each policy, at equal rate and for equal entropy."""
    of_policies = {name: values_of(lines[list(COLUMNS)]) for name, lines in policies.items()}
    policies = {name: values for name, values in of_policies.items() if is_seen(values)}
    figure = Figure(figsize=(7, 0.8 + 0.3 * len(policies)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    shown = {ADAM: "at the same learning rate", "entropy lost": "for the same loss of entropy"}
    for axes, (name, title) in zip(panels, shown.items(), strict=True):
        for y, values in enumerate(policies.values()):
            gain, half = above_dapo((name, held_equal(values)[name]), values, "delta")
            inside = "black" if abs(gain) > half else "white"  # white: the interval contains 0
            axes.errorbar(gain, y, xerr=half, fmt="o", ms=5, capsize=3, color="black", mfc=inside)
        axes.axvline(0, color="black", lw=0.8)
        axes.set_title(title, size=10)
        axes.set_xlim(-30, 30)
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(policies)), policies)
    panels[0].invert_yaxis()
    figure.supxlabel(
        "rise of expected reward by DelTA, % above DAPO's, with 95 % intervals", size=9.5
    )
    figure.savefig(path, dpi=200)
    print(f"saved as {path}")
