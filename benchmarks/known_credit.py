"""Rows that only the toy can have, because there the tokens that decided the reward are known.

`--method oracle` and `--proxy common` exist in `gain` and `compare` alone. `outcomes` measures the
model of a finished run of chains, for `compare --measure benchmarks.known_credit:outcomes`.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from config import METHODS, PROXIES, Config
from infra.errors import UserError
from infra.loading import load_model
from infra.micro_batches import mini_batches
from infra.problems import encode_prompts, prompt_flags
from methods import SEED_STRIDE, Method, TokenBatch, TokenOutputs
from rollout import problems_of_step, rollout
from toy.by_name import problem_set
from toy.task import digits_after, fault, is_right
from toy.tokenizer import CONNECTIVES, VOCABULARY
from train import Policy, pass_at_theta_old


def common_proxy(outputs: TokenOutputs, head: Callable) -> torch.Tensor:
    """v = (1 - p) [h, |h|]: [n, H + 1], the row proxy of states that share a direction.

    No probability depends on the new coordinate, if the head's weights for it are 0.
    """
    norm = outputs.hidden.norm(dim=1, keepdim=True)
    return -torch.expm1(outputs.logprob)[:, None] * torch.cat([outputs.hidden, norm], dim=1)


def oracle(tokens: TokenBatch, v, cfg: Config) -> torch.Tensor:
    """ρ [N] of a step of train.py with --data toy. Raises UserError for other data."""
    if cfg.data != "toy":
        raise UserError(f"--method oracle needs --data toy, not {cfg.data}")
    step = tokens.seed - SEED_STRIDE * cfg.seed
    problems = problem_set("toy", cfg.seed)
    chosen = problems_of_step(len(problems), step, cfg.prompts, cfg.seed)
    asked = [problems[i]["problem"] for i in chosen for _ in range(cfg.group_size)]
    responses = [words(x) for x in tokens.token.split(tokens.length.tolist())]
    right = (tokens.reward > 0).tolist()
    return oracle_weights(list(zip(asked, responses, right, strict=True)), tokens.advantage)


def words(token: torch.Tensor) -> list[str]:
    """The texts of tokens; an id beyond the toy's vocabulary is another word without meaning."""
    return [VOCABULARY[i] if i < len(VOCABULARY) else CONNECTIVES[0] for i in token.tolist()]


def oracle_weights(
    answered: list[tuple[str, list[str], bool]], advantage: torch.Tensor
) -> torch.Tensor:
    """ρ [N]: 1.2 for the tokens that decided the reward, else 0.8, with DAPO's masses.

    answered: the problem, the tokens and whether they were rewarded, of each response.
    """
    weight = torch.full([sum(len(response) for _, response, _ in answered)], 0.8)
    start = 0
    for problem, response, right in answered:
        stated = digits_after("=", response)
        decided = stated if right else fault(problem, response, stated)
        weight[[start + i for i in decided]] = 1.2
        start += len(response)
    return keep_masses(weight.to(advantage.device), advantage)


def keep_masses(weight: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """ρ [N], scaled on each side so that the side's mass Σ ρ|A| is DAPO's Σ|A|."""
    weight = weight.clone()
    for side in (advantage > 0, advantage < 0):
        mass = advantage[side].abs()
        weight[side] *= mass.sum() / (weight[side] * mass).sum()
    return weight


def outcomes(cfg: Config) -> dict[str, float]:
    """What the model of a finished run does with 256 of the toy's held-out problems.

    accuracy: of a sample for each problem. greedy; top_p: with p = 0.7. entropy_results: mean
    entropy where a sample states a result, nats. entropy_words: where it has a word.
    """
    lm, tokenizer = load_model(Path(cfg.output_dir) / "model")
    policy = Policy(lm)
    problems = problem_set("toy-held-out")[:256]
    _, prompts = encode_prompts(
        problems, tokenizer, cfg.max_prompt_tokens, *prompt_flags(cfg).values()
    )
    keys = [(cfg.seed, 0, i, 0) for i in range(len(prompts))]
    found = {}
    for name, drawn in (
        ("greedy", {"temperature": 0.0}),
        ("top_p", {"top_p": 0.7}),
        ("accuracy", {}),
    ):
        responses = rollout(lm, tokenizer, prompts, keys, **cfg.limits, **drawn)
        texts = [words(torch.from_numpy(x.tokens)) for x in responses]
        right = [is_right(x["problem"], "".join(y)) for x, y in zip(problems, texts, strict=True)]
        found[name] = float(np.mean(right))

    nothing = torch.zeros(sum(map(len, texts)))  # no advantage
    plan = mini_batches(responses, nothing, len(responses), cfg.micro_batch_tokens, lm)
    _, entropy, _ = pass_at_theta_old(policy, plan, Method())  # [N]
    results, connectives, start = [], [], 0
    for text in texts:
        results += [start + i for i in digits_after("=", text)]
        connectives += [start + i for i, word in enumerate(text) if word in CONNECTIVES]
        start += len(text)
    found["entropy_results"] = float(entropy[results].mean())
    found["entropy_words"] = float(entropy[connectives].mean())
    return found


METHODS["oracle"] = Method(weights=oracle)
PROXIES["common"] = common_proxy
