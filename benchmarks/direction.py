"""When does DelTA help? Its gain with a direction that all hidden states share, and without it.

Protocol and results: docs/results/direction.md. Runs go one after the other in this process; a
run's line is appended to the CSV when it ends.
"""

import io
import tempfile
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

import toy
import train
from batch import TokenBatch
from benchmarks.settings import FOUR, SIZE, Setting
from benchmarks.tables import append_csv, read_csv
from config import Config, parse_config, selected_method
from infra.folder import read_lines
from loading import load_model
from methods import Method, top_share
from rollout import Sampling
from toy.tokenizer import LARGE_VOCABULARY, MANY_CONNECTIVES

SEEDS = range(1101, 1109)
PROBLEMS = 128  # held out
SAMPLES = 8  # responses to each at temperature 1; one more is greedy

FIVE = {"k": 5, "noise": 0.1, "tokens": 44, "regime": "learn"}
SHARPEN = FIVE | {"noise": 0.2, "regime": "sharpen"}
LONG_SIZE = SIZE.replace("28", "110")
SETTINGS = {
    "learn": Setting(**FIVE),
    "learn, filler 4": Setting(**FOUR),
    "k5": Setting(**SHARPEN),
    "k12": Setting(),
    "learn minus": Setting(**FIVE | {"regime": "learn-minus"}),
    "Zipf": Setting(**FOUR, zipf=True),
    "Zipf, 16 updates": Setting(**FOUR, zipf=True, size=SIZE.replace("batch 4", "batch 1")),
    "learn, 110 steps": Setting(**FIVE, size=LONG_SIZE),
    "learn, filler 4, 110 steps": Setting(**FOUR, size=LONG_SIZE),
}
PRIMARY = tuple(SETTINGS)[:7]
LONGER = tuple(SETTINGS)[7:]
SECONDARY = ("learn", "learn, filler 4", "k5")
OF_PAPER = ("learn", "k5")  # settings of the paper's rows

DOSES = ("S = 0", "S = 0.25", "S = 0.5", "S = 1", "S = 2", "scalar")  # DelTA, K = 1
ROWS = {  # row -> flags of train.py
    "dapo": "--method dapo",
    "S = 0": "",
    "S = 0.25": "--common 0.25",
    "S = 0.5": "--common 0.5",
    "S = 1": "--common 1",
    "S = 2": "--common 2",
    "scalar": "--proxy scalar",
    "S = 0, K = 0": "--K 0",
    "S = 1, K = 0": "--common 1 --K 0",
    "scalar, K = 0": "--proxy scalar --K 0",
    "model, dapo": "--method dapo",  # of a model whose own states are h' = [h, ‖h‖]
    "model": "",  # DelTA as published, of this model
    "centred": "--proxy centred",
    "centred, S = 1": "--proxy centred --common 1",
    "hard, S = 1": "--delta-variant hard --common 1",
    "rule": "--method dapo",
    "side means": "--method dapo",
    "random half": "--method dapo",
    "top half, S = 0": "--select top",
    "top half, S = 1": "--select top --common 1",
    "bottom half, S = 0": "--select bottom",
    "bottom half, S = 1": "--select bottom --common 1",
}
MAIN_ROWS = tuple(ROWS)
SCORES = {  # the paper's analysis rows (Tables 2 and 3, λ's range): their score; flags
    "dapo": (19.05, "--method dapo"),
    "delta": (23.27, ""),
    "K = 0": (19.97, "--K 0"),
    "K = 2": (22.15, "--K 2"),
    "K = 3": (22.20, "--K 3"),
    "within_side": (17.94, "--delta-variant within_side"),
    "hard": (20.93, "--delta-variant hard"),
    "fixed_gamma": (21.19, "--delta-variant fixed_gamma"),
    "no_norm": (21.39, "--delta-variant no_norm"),
    "no_range_map": (20.78, "--delta-variant no_range_map"),
    "lam_min 0.5": (23.22, "--lam-min 0.5"),
    "lam_max 1.5": (22.77, "--lam-max 1.5"),
    "both": (23.07, "--lam-min 0.5 --lam-max 1.5"),
    "random": (18.34, "--delta-variant random"),
}


def row_of_paper(name: str, S: int) -> str:
    """The row, in ROWS, of one of SCORES at S."""
    if name in ("dapo", "random"):
        return name  # these do not depend on S
    return {"delta": f"S = {S}", "K = 0": f"S = {S}, K = 0"}.get(name, f"{name}, S = {S}")


for name, (_, flags) in SCORES.items():
    for S in (0, 1):
        ROWS.setdefault(row_of_paper(name, S), f"{flags} --common {S}" if S else flags)


class Job(NamedTuple):
    """One run."""

    setting: str
    row: str
    seed: int

    @property
    def rate(self) -> float:
        return 4e-4 if "16 updates" in self.setting else 2e-4


def planned() -> list[Job]:
    """The protocol's runs in their order: five parts, each seed by seed."""
    primary = ("dapo", "S = 0", "S = 1")
    of_paper = [row_of_paper(name, S) for S in (0, 1) for name in SCORES]
    elsewhere = [name for name in PRIMARY if name not in SECONDARY]
    parts = [
        (PRIMARY, primary),
        (SECONDARY, MAIN_ROWS),
        (OF_PAPER, of_paper),
        (LONGER, primary),
        (elsewhere, ("S = 1, K = 0", "model, dapo", "model")),
    ]
    jobs = [
        Job(setting, row, seed)
        for settings, rows in parts
        for seed, setting, row in product(SEEDS, settings, rows)
    ]
    return list(dict.fromkeys(jobs))


# ---- rows that no flag selects -------------------------------------------------------------------


def rule(tokens: TokenBatch, flags) -> torch.Tensor:
    """1.2 for the tokens that the coordinate is expected to raise, 0.8 for the others: [N].

    Where A > 0 these are the tokens with 1 - p below its mean, where A < 0 those above it.
    """
    surprise = -torch.expm1(tokens.logprob)  # 1 - p
    sides = tokens.advantage != 0
    below = surprise < surprise[sides].mean()
    raised = torch.where(tokens.advantage > 0, below, ~below) & sides
    weight = torch.where(raised, 1.2, 0.8)
    return weight / weight.mean()


def side_means(tokens: TokenBatch, flags) -> torch.Tensor:
    """1.15 where A > 0 and 0.88 elsewhere, the means of `rule` in a pilot: [N]."""
    weight = torch.where(tokens.advantage > 0, 1.15, 0.88)
    return weight / weight.mean()


def random_half(tokens: TokenBatch, flags) -> torch.Tensor:
    """Half of the tokens with an advantage, at random; 1 for the others: [N]."""
    generator = torch.Generator().manual_seed(tokens.seed)
    sides = tokens.advantage != 0
    weight = torch.ones_like(tokens.logprob)
    n = int(sides.sum())
    weight[sides] = top_share(torch.rand(n, generator=generator), 0.5, tokens.seed)
    return weight


# ---- a model whose own states share a direction --------------------------------------------------


class SharedConfig(Qwen3Config):
    model_type = "qwen3_shared"


class SharedNorm(Qwen3RMSNorm):
    """Qwen3's last norm, which gives h, and one more state: h' = [h, ‖h‖]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = super().forward(x)
        return torch.cat([h, h.norm(dim=-1, keepdim=True)], dim=-1)


class SharedForCausalLM(Qwen3ForCausalLM):
    """A Qwen3 with one more state. A head W' = [W, 0] gives the logits of W."""

    config_class = SharedConfig

    def __init__(self, config: SharedConfig):
        super().__init__(config)
        self.model.norm = SharedNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = torch.nn.Linear(config.hidden_size + 1, config.vocab_size, bias=False)
        self.post_init()


AutoConfig.register(SharedConfig.model_type, SharedConfig)
AutoModelForCausalLM.register(SharedConfig, SharedForCausalLM)


@cache
def base_folder(setting: str, shared: bool) -> Path:
    """The folder of a setting's base; with `shared` its exact reparametrisation, h' = [h, ‖h‖]."""
    folder = SETTINGS[setting].base()
    if not shared:
        return folder
    lm, tokenizer = toy.load_base(folder)
    config = SharedConfig(**{k: v for k, v in lm.config.to_dict().items() if k != "model_type"})
    model = SharedForCausalLM(config)
    weights = lm.state_dict()
    head = weights["lm_head.weight"]  # [V, H]
    weights["lm_head.weight"] = torch.cat([head, torch.zeros(len(head), 1)], dim=1)  # W'
    model.load_state_dict(weights)
    written = Path(tempfile.mkdtemp()) / "model"
    model.save_pretrained(written)
    tokenizer.save_pretrained(written)
    return written


# ---- a run ---------------------------------------------------------------------------------------

PER_STEP = ("reward", "connectives", "results")  # the last two: their tokens' mean entropy, nats
MEANS = ("hidden_cosine", "lambda_saturated", "lambda_corr_pos", "lambda_corr_neg")
MEANS += ("lambda_pos", "lambda_neg")  # metrics, as means over the steps
COLUMNS = (*Job._fields, "accuracy", "greedy", *MEANS, *PER_STEP)


def complete(path: Path) -> list[dict]:
    """The lines of the CSV, after training the planned runs that it lacks."""
    done = {Job(x["setting"], x["row"], int(x["seed"])) for x in read_csv(path, COLUMNS)}
    for job in tqdm([job for job in planned() if job not in done], smoothing=0):
        append_csv(path, COLUMNS, [trained(job)])
    return read_csv(path, COLUMNS)


def trained(job: Job) -> dict:
    """Train and evaluate one run on one thread. Returns its line in the CSV."""
    torch.set_num_threads(1)
    setting, row = SETTINGS[job.setting], ROWS[job.row]
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{row} {setting.flags} --lr {job.rate} --seed {job.seed} --output-dir {folder}"
        cfg = parse_config(flags.split())
        cfg.model = str(base_folder(job.setting, job.row.startswith("model")))
        entropies = {"connectives": [], "results": []}

        def make_method(cfg: Config, memory: dict) -> Method:
            return recording(method_of(job.row, cfg, memory), entropies)

        with patch.object(train, "report", lambda run: None), redirect_stdout(io.StringIO()):
            train.train(cfg, make_method)
        steps = [x for x in read_lines(Path(folder) / "metrics.jsonl") if "reward" in x]
        line = job._asdict() | held_out(job, Path(folder) / "model")

    for name in MEANS:
        known = [step[name] for step in steps if name in step]
        line[name] = round(sum(known) / len(known), 4) if known else ""
    values = entropies | {"reward": [step["reward"] for step in steps]}
    for name in PER_STEP:
        line[name] = " ".join(str(round(value, 4)) for value in values[name])
    return line


def method_of(row: str, cfg: Config, memory: dict) -> Method:
    """The method of a row. memory: what it keeps between steps."""
    ours = {"rule": rule, "side means": side_means, "random half": random_half}
    return Method(weights=ours[row]) if row in ours else selected_method(cfg, memory)


def recording(method: Method, entropies: dict[str, list[float]]) -> Method:
    """The method; each step appends the mean entropy of the connectives and of the results."""
    connectives = [LARGE_VOCABULARY.index(word) for word in MANY_CONNECTIVES]

    def weights(tokens: TokenBatch, flags) -> torch.Tensor:
        responses = tokens.token.split(tokens.length.tolist())
        results = torch.cat([toy.states_result(ids) for ids in responses])
        kinds = {"connectives": torch.isin(tokens.token, torch.tensor(connectives))}
        for name, chosen in (kinds | {"results": results}).items():
            entropies[name].append(float(tokens.entropy[chosen].mean()))
        return method.weights(tokens, flags)

    return replace(method, weights=weights)


def held_out(job: Job, folder: Path) -> dict[str, float]:
    """The accuracies of a run's model on held-out problems: sampled (avg@8) and greedy."""
    setting = SETTINGS[job.setting]
    lm, tokenizer = load_model(folder)
    asked = toy.problems(PROBLEMS, seed=1, k=setting.k)  # odd: not in training
    prompts = tokenizer([each["problem"] for each in asked]).input_ids
    found = {}
    for name, temperature, n in (("accuracy", 1.0, SAMPLES), ("greedy", 0.0, 1)):
        sampling = Sampling(setting.tokens, temperature, seed=job.seed)
        found[name] = round(train.accuracy(lm, tokenizer, asked, prompts, n, sampling), 4)
    return found
