"""Every flag of train.py, and the method that the flags select.

`Config` lists all hyper-parameters. The defaults are the paper's (App. I); "ours" marks a
default that the paper does not state for DelTA. With --model toy, toy/presets.py replaces them: 16
prompts x 8 responses, learning rate 1e-4 and so on. trl_delta.py has the same flags for the token
weights.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote

import ablations
import extensions
import methods
from ablations import VARIANTS
from infra.data_sets import SOURCES
from infra.errors import UserError
from infra.flags import Parser, flag, of_other_methods, spelled
from infra.ranks import DTYPES
from infra.tokens import stop_texts
from methods import DAPO_CLIP, Method
from toy.by_name import SETS
from toy.presets import TOYS

METHODS = methods.PAPER_METHODS | extensions.OTHER_METHODS  # the values of --method
PROXIES = ablations.PAPER_PROXIES | extensions.OTHER_PROXIES  # the values of --proxy
DELTA_VARIANTS = [*VARIANTS, "fixed_gamma", "random"]  # Tables 2 and 3; App. F's control
SELECTIONS = ["none", "top", "random", "bottom"]  # Sec. 5.2


@dataclass
class Config:
    """The hyper-parameters. In flag(...), `method` names the only method that uses the flag, and
    all others refuse it; `free` flags may change when a run resumes."""

    # Token weights
    method: str = flag("delta", "token weights (App. E)", METHODS)
    clip_low: float = flag(DAPO_CLIP[0], "ε_low for the ratio clip (gspo: 3e-4)", low=0, high=1)
    clip_high: float = flag(DAPO_CLIP[1], "ε_high (grpo, dr_grpo: 0.2; gspo: 4e-4)", low=0)
    K: int = flag(1, "number of centroid refinements", low=0, high=1000, method="delta")
    lam_min: float = flag(0.8, "λ_min, lower end of the coefficients' range", low=0, method="delta")
    lam_max: float = flag(1.2, "λ_max, upper end of the coefficients' range", low=0, method="delta")
    delta_variant: str = flag("full", "ablation (Tables 2 and 3)", DELTA_VARIANTS, method="delta")
    proxy: str = flag("row", "proxy for a token's gradient (App. F)", PROXIES, method="delta")
    proxy_topk: int = flag(20, "number of tokens for --proxy topk (ours)", low=1, method="delta")
    select: str = flag(
        "none", "DAPO on the tokens with the highest λ, or others", SELECTIONS, method="delta"
    )
    select_share: float = flag(0.5, "share that --select keeps", above=0, high=1, method="delta")
    cispo_cap: float = flag(5.0, "C, largest ratio π_θ / π_old", low=1, method="cispo")

    # Rollouts
    prompts: int = flag(128, "prompts per step", low=1, high=10**5)
    group_size: int = flag(16, "responses per prompt, G", low=2, high=10**4)
    max_new_tokens: int = flag(20480, "longest response, tokens", low=1, high=10**7)
    temperature: float = flag(1.0, "for sampling and log-probabilities", low=0.001)
    stop: str = flag("", "text that ends a response, as an end token does; several: a JSON list")
    overlong_buffer: int = flag(
        0,
        "R falls in the last so many of --max-new-tokens, to R - 1 (released: 4096)",
        low=0,
        high=10**7,
    )

    # Updates
    steps: int = flag(220, "rollout batches (the paper's 14B: 300)", low=1, high=10**7, free=True)
    mini_batch: int = flag(32, "prompts per update; prompts / mini-batch updates per step", low=1)
    lr: float = flag(1e-6, "AdamW learning rate, constant", above=0)
    weight_decay: float = flag(0.1, "AdamW weight decay (released)", low=0)
    max_grad_norm: float = flag(1.0, "gradient clipping by global norm (released)", above=0)

    # Model and data
    # A run is identified by hashes of the model's files and the problems, so both may move.
    model: str = flag(
        "toy", "`toy`, `toy-code`, a local Hugging Face folder or a hub id", free=True
    )
    data: str = flag(
        "deepmath", "a known name, a hub id, a .jsonl, .json, .csv or .parquet file", free=True
    )
    problem_column: str = flag("problem", "problem column, for a set without a known name")
    answer_column: str = flag("answer", "answer column, for a set without a known name")
    reward: str = flag("", "a function of your own, FILE.py:FUNCTION; default: verify.py's")
    prompt_template: str = flag("", "a prompt with {problem} in it; default: the chat template")
    system: str = flag("", "a system message before each problem, for the chat template")
    template_args: str = flag("", "for the chat template, such as '{\"enable_thinking\": false}'")
    max_prompt_tokens: int = flag(2048, "longer prompts are dropped", low=1)
    seed: int = flag(0, "for sampling and data order", low=0, high=10**12)

    # Evaluation
    eval_data: str = flag(
        "aime25", "evaluation problems; they select the best model; empty: none", free=True
    )
    eval_limit: int = flag(0, "evaluate only the first problems; 0: all (ours)", low=0)
    eval_every: int = flag(10, "steps between evaluations (ours)", low=1, free=True)
    eval_samples: int = flag(8, "responses per problem, the n of avg@n", low=1, high=10**4)
    eval_top_p: float = flag(0.7, "top-p in evaluation", above=0, high=1)
    eval_greedy: bool = flag(False, "also evaluate one greedy response per problem (ours)")

    # Memory. The first three change results only through rounding: see rollout.py.
    micro_batch_tokens: int = flag(
        24576,
        "max tokens in a forward pass; on one rank a group's prompt counts once (ours)",
        low=1,
        free=True,
    )
    recompute: bool = flag(True, "recompute activations in the backward pass (ours)", free=True)
    in_flight: int = flag(256, "max responses that a rank samples at once (ours)", low=1, free=True)
    dtype: str = flag("auto", "of the computation, auto is bfloat16 if a GPU has it", DTYPES)

    # Output
    output_dir: str = flag("", "default: runs/<model>-<method>-<seed>", free=True)
    save_every: int = flag(10, "steps between checkpoints (ours)", low=1, free=True)
    samples: int = flag(
        8, "responses saved at step 1, each --eval-every and the end", low=0, free=True
    )
    track: str = flag("", "also log to this module: wandb, trackio or a FILE.py", free=True)
    project: str = flag("delta", "the project's name in that tracker", free=True)

    # The toy
    toy_regime: str = flag("learn", "what the toy's base model gets wrong", ["learn", "sharpen"])

    @property
    def limits(self) -> dict:
        """The limits of sampling, as rollout.rollout takes them."""
        names = ("max_new_tokens", "in_flight", "stop")
        return {name: getattr(self, name) for name in names}

    @property
    def sets(self) -> dict:
        """The sets of problems, as infra.problems.load_sets takes them."""
        names = ("data", "eval_data", "seed", "reward", "eval_limit")
        columns = (self.problem_column, self.answer_column)
        return {name: getattr(self, name) for name in names} | {"columns": columns}

    @property
    def eval_metric(self) -> str:
        """The name of the metric that evaluations give, which selects the best model."""
        return "eval_reward" if self.reward else "eval_accuracy"


GROUPS = {  # of the flags in --help: the first flag below a heading -> the heading
    "method": "token weights",
    "prompts": "rollouts",
    "steps": "updates",
    "model": "model and data",
    "eval_data": "evaluation",
    "micro_batch_tokens": "memory",
    "output_dir": "output",
    "toy_regime": "the toy",
}
ABOUT = (
    "RLVR with DelTA. Example: python train.py --model FOLDER --data gsm8k --eval-data gsm8k-test "
    "--max-new-tokens 1024. The defaults are the paper's; (released): those of its code, which the "
    "paper does not state; (ours): neither states them; toy: those with --model toy."
)
CLIP_FLAGS = ("clip_low", "clip_high")
PROXY_FLAGS = ("K", "proxy", "proxy_topk")
RANGE_FLAGS = ("lam_min", "lam_max")


def parse_config(argv: list[str] | None = None) -> Config:
    """Each flag from the command line, else the toy's or the method's default, else the paper's.

    Raises UserError for flags that are unknown, out of range, without effect or contradictory.
    """
    parser = Parser(Config, "train.py", ABOUT, groups=GROUPS, toy=TOYS["toy"])
    given = vars(parser.parse_args(argv))
    toy_defaults = TOYS.get(given.get("model", Config.model), {})
    clip = METHODS[given.get("method", Config.method)].clip_range or DAPO_CLIP  # no clip: not used
    defaults = dict(zip(CLIP_FLAGS, clip, strict=True)) | toy_defaults
    cfg = Config(**(defaults | given))

    cfg.model = str(Path(cfg.model))  # without a trailing slash
    cfg.output_dir = cfg.output_dir or f"runs/{Path(cfg.model).name}-{cfg.method}-{cfg.seed}"
    if "model" not in given and given.get("data", "toy") not in SETS:
        raise UserError(f"--data {cfg.data} needs --model: without it the toy would be trained")
    check_flags(cfg, given)
    stop_texts(cfg.stop)  # raises
    if cfg.track:
        from infra.trackers import tracker_of

        tracker_of(cfg.track)  # raises
    if cfg.prompts % cfg.mini_batch:
        raise UserError(
            f"--prompts {cfg.prompts} is not a multiple of --mini-batch {cfg.mini_batch}: raise or "
            "lower one of them"
        )
    return cfg


def check_flags(cfg: Config, given: dict) -> None:
    """Raise UserError for a flag that does nothing, or that contradicts another.

    given: the flags on the command line. trl_delta.py checks its flags here too.
    """
    known_data = all(name in (*SOURCES, *SETS, "") for name in (cfg.data, cfg.eval_data))
    without_effect = [  # (a flag, whether its value disables other flags, those other flags)
        ("method", True, of_other_methods(cfg, cfg.method)),
        ("method", METHODS[cfg.method].clip_range is None, CLIP_FLAGS),
        ("select", cfg.select == "none", ("select_share",)),
        ("select", cfg.select != "none", ("delta_variant", *RANGE_FLAGS)),  # ranks by Δ/γ
        ("select", cfg.select == "random", PROXY_FLAGS),
        ("delta_variant", cfg.delta_variant == "random", PROXY_FLAGS),
        ("delta_variant", cfg.delta_variant == "no_range_map", RANGE_FLAGS),
        ("proxy", cfg.proxy != "topk", ("proxy_topk",)),
        ("model", cfg.model != "toy", ("toy_regime",)),
        ("prompt_template", cfg.prompt_template, ("system", "template_args")),
        ("data", known_data, ("problem_column", "answer_column")),
    ]
    for name, disables, flags in without_effect:
        for other in flags:
            if disables and other in given:
                setting = f"{spelled(name)} {quote(getattr(cfg, name))}"
                raise UserError(f"{spelled(other)} does nothing with {setting}")
    if cfg.overlong_buffer >= cfg.max_new_tokens:
        raise UserError(
            f"--overlong-buffer {cfg.overlong_buffer} would shape all {cfg.max_new_tokens} tokens "
            "of --max-new-tokens: pass a smaller buffer; the released code's is a fifth"
        )
    if cfg.lam_min > cfg.lam_max:
        raise UserError(f"--lam-min {cfg.lam_min} is above --lam-max {cfg.lam_max}")


def selected_method(cfg: Config) -> Method:
    """The Method that the flags select. parse_config has checked the flags."""
    method = METHODS[cfg.method]
    if cfg.method != "delta":
        return method
    features = PROXIES[cfg.proxy]
    if cfg.proxy == "topk":
        features = partial(features, k=cfg.proxy_topk)
    if cfg.select != "none":
        weights = ablations.selected_tokens
        features = None if cfg.select == "random" else features
    elif cfg.delta_variant == "random":
        weights, features = ablations.random_coefficients, None
    elif cfg.delta_variant == "fixed_gamma":
        memory = {}
        weights = partial(methods.delta_weights, formulas=ablations.fixed_gamma(memory))
        method = replace(method, memory=memory)
    else:
        weights = partial(methods.delta_weights, formulas=VARIANTS[cfg.delta_variant])
    return replace(method, weights=weights, features=features)
