"""The whole algorithm on one page: trains the toy with DelTA on one device, in about a minute.

    $ python minimal.py                       # flags: --method dapo, --steps 40, --seed 1
    accuracy 0.303, greedy 0.223
    step    1/160  reward 0.188  loss 0.0882  grad_norm 0.141  weight+ 0.827  weight- 1.12
    reward 1, A 2.47: Then 1.17  0 0.78  * 0.78  0 0.78  = 0.78  0 0.78  ...

A step samples G responses to each of some problems, rewards the right ones and turns rewards into
advantages A. DelTA gives each token a weight near 1 (the third line of output). The update raises
the probability of tokens with A > 0 and lowers that of tokens with A < 0. The loss measures no
progress: it starts at -mean(ρ A), near 0 for DAPO and not for DelTA, because weight+ < weight-.

This page is the specification of train.py: with the same seed both have, up to rounding, the same
responses, rewards, loss and gradient norm in the first epoch (512 steps, tests/test_minimal.py).
train.py adds other models, data and methods, many GPUs, checkpoints and limits on memory.

Shapes and their sizes here: B 128 responses per step, P 13 tokens in a prompt, T at most 64 in a
response, N about 5,120 response tokens (packed: one row per token, no padding), n of them in a
mini-batch, H 64 hidden units, V 30 words.
"""

import argparse
from typing import NamedTuple

import numpy as np
import torch

import toy
from delta import (
    centroids,
    margins,
    normalise,
    range_map,
    scores,
    temperatures,
    token_gradient_proxy,
)
from grpo import clipped_surrogate, group_advantages
from verify import reward

# The toy's settings; in brackets the paper's (App. I).
PROMPTS = 16  # problems per step (128)
GROUP_SIZE = 8  # G, responses per problem (16)
MINI_BATCH = 4  # problems per update (32)
MAX_NEW_TOKENS = 64  # per response, with the end token (20,480)
LEARNING_RATE = 1e-4  # (1e-6)
WEIGHT_DECAY = 0.1  # released code
MAX_GRAD_NORM = 1.0  # released code


def main(argv: list[str] | None = None) -> list[dict]:
    """Train the toy, and print a line per step. Returns the metrics of each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=["delta", "dapo"], default="delta")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(argv)

    lm, tokenizer = toy.base_model(regime="learn", noise=0.1)  # a Qwen3 of 0.1 million parameters
    optimizer = torch.optim.AdamW(lm.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    problems = toy.problems(8192, seed=2 * flags.seed)
    held_out = toy.problems(512, seed=1)  # the seeds of training are even
    generator = torch.Generator().manual_seed(1_000_003 * flags.seed)  # rollout.SEED_STRIDE
    order = torch.randperm(len(problems), generator=generator).tolist()

    print_accuracy(lm, tokenizer, held_out, flags.seed)
    metrics = []
    for step in range(1, flags.steps + 1):
        first = PROMPTS * (step - 1) % len(order)
        chosen = order[first : first + PROMPTS]  # indices of problems
        rollouts = sample(lm, tokenizer, problems, chosen, GROUP_SIZE, flags.seed, step)
        line, advantage, weight = train_step(lm, optimizer, rollouts, flags.method)
        numbers = "  ".join(f"{name} {value:.3g}" for name, value in line.items())
        print(f"step {step:4d}/{flags.steps}  {numbers}", flush=True)
        if step in (1, flags.steps):
            print_response(tokenizer, rollouts, advantage, weight)
        metrics.append(line)
    print_accuracy(lm, tokenizer, held_out, flags.seed)
    return metrics


class Rollouts(NamedTuple):
    """B prompts with a response each; the G responses to a problem are consecutive."""

    ids: torch.Tensor  # [B, P + T] prompt, response, padding
    is_token: torch.Tensor  # [B, T] whether a column is a token of the response; N are True
    rewards: torch.Tensor  # [B] R_i


# ---- the algorithm -------------------------------------------------------------------------------


def train_step(lm, optimizer, rollouts: Rollouts, method: str) -> tuple:
    """One rollout batch: θ_old becomes θ. Returns (metrics, A [N], ρ [N])."""
    # A_i = (R_i - mean) / std within each group (Sec. 2), the same for all tokens of a response
    length = rollouts.is_token.sum(dim=1)  # [B]
    advantage = group_advantages(rollouts.rewards, GROUP_SIZE).repeat_interleave(length)  # [N]

    # One pass at θ_old; ρ comes from it and stays fixed during the updates (Eq. 8)
    with torch.no_grad():
        old_logprob, hidden = token_outputs(lm, rollouts.ids, rollouts.is_token)  # [N], [N, H]
        weight = token_weights(method, hidden, old_logprob, advantage)  # ρ [N]

    # One update per mini-batch of responses
    mini_batch = torch.arange(len(length)) // (MINI_BATCH * GROUP_SIZE)  # [B] its number: 0 to 3
    mini_batch_of_token = mini_batch.repeat_interleave(length)  # [N]
    losses, norms = [], []
    for k in range(PROMPTS // MINI_BATCH):
        responses = mini_batch == k  # [B]
        tokens = mini_batch_of_token == k  # [N], of which n are True
        if not advantage[tokens].any():
            losses.append(0.0)
            continue  # no gradient; AdamW's momentum and weight decay would still move θ

        # J = (1/n) Σ ρ min(r A, clip(r) A) (Eq. 8), r = π_θ / π_old, which is 1 at k = 0 only.
        # n counts A = 0 too; λ̄ has mean 1 over all N. Dual clip: where A < 0 a term is >= 10 A.
        logprob, _ = token_outputs(lm, rollouts.ids[responses], rollouts.is_token[responses])  # [n]
        surrogate = clipped_surrogate(logprob, old_logprob[tokens], advantage[tokens])
        objective = (weight[tokens] * surrogate).sum() / len(surrogate)
        (-objective).backward()
        norm = torch.nn.utils.clip_grad_norm_(lm.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(-objective.item())
        norms.append(norm.item())

    metrics = {
        "reward": rollouts.rewards.mean().item(),
        "loss": sum(losses) / len(losses),
        "grad_norm": sum(norms) / max(1, len(norms)),
        "weight+": weight[advantage > 0].mean().item(),
        "weight-": weight[advantage < 0].mean().item(),
    }
    return metrics, advantage, weight


def token_weights(method: str, hidden, logprob, A) -> torch.Tensor:
    """ρ [N]: 1 for DAPO; λ̄ for DelTA, as in delta.delta_coefficients with K = 1 (Sec. 3.2)."""
    if method == "dapo" or not (A > 0).any() or not (A < 0).any():
        return torch.ones_like(logprob)  # with one empty side there is nothing to separate

    v = token_gradient_proxy(hidden, logprob)  # (1 - p) h [N, H] (App. F)
    mu_pos, mu_neg = centroids(v, A)  # μ⁽⁰⁾ (Eq. 3)
    delta = margins(v, A, mu_pos, mu_neg)  # Δ⁽⁰⁾ (App. G)
    gamma = temperatures(delta, A)  # γ⁽⁰⁾; also γ⁽¹⁾, which lags by one pass (App. H)
    alpha = scores(delta, A, *gamma)  # α⁽⁰⁾ (Eq. 6)
    mu_pos, mu_neg = centroids(v, A, alpha)  # μ⁽¹⁾ (Eq. 7)
    delta = margins(v, A, mu_pos, mu_neg)  # Δ⁽¹⁾
    alpha = scores(delta, A, *gamma)  # α*
    lam = range_map(alpha, A, 0.8, 1.2)  # λ
    return normalise(lam)  # λ̄, of mean 1 (Eq. 8)


def token_outputs(lm, ids: torch.Tensor, is_token: torch.Tensor) -> tuple:
    """(log π_θ of each response token [N], the state h that enters the LM head [N, H])."""
    P = ids.shape[1] - is_token.shape[1]
    states = lm.model(ids).last_hidden_state  # causal: no token attends to the padding after it
    hidden = states[:, P - 1 : -1][is_token]  # [N, H]; the state at t - 1 predicts token t
    token = ids[:, P:][is_token]  # [N]
    logprobs = lm.lm_head(hidden).log_softmax(dim=-1)  # [N, V]
    return logprobs.gather(1, token[:, None]).squeeze(1), hidden


def sample(lm, tokenizer, problems, chosen, G, seed, step=0, greedy=False) -> Rollouts:
    """G responses o ~ π to each problem in `chosen`, and their rewards.

    The uniform draw for a token is fixed by (seed, step, problem, sample, position), so methods are
    compared under common random numbers.
    """
    asked = [problems[i] for i in chosen for _ in range(G)]  # B
    names = [(seed, step, i, j) for i in chosen for j in range(G)]
    draws = [np.random.default_rng(name).random(MAX_NEW_TOKENS) for name in names]
    draws = torch.from_numpy(np.stack(draws))  # [B, MAX_NEW_TOKENS]
    prompts = torch.tensor(tokenizer([each["problem"] for each in asked]).input_ids)  # [B, P]
    P = prompts.shape[1]  # equal for all problems of the toy: no padding on the left

    def drawn(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Logits [B, V]: 0 for the drawn token, which `generate` then takes, else -inf."""
        token = inverse_cdf(logits, draws[:, ids.shape[1] - P])
        return torch.full_like(logits, -torch.inf).scatter(1, token[:, None], 0.0)

    processors = [] if greedy else [drawn]  # `generate` takes the likeliest token
    ids = lm.generate(prompts, logits_processor=processors, max_new_tokens=MAX_NEW_TOKENS)
    is_end = ids[:, P:] == tokenizer.eos_token_id  # [B, T]
    is_token = is_end.cumsum(dim=1) - is_end.long() == 0  # no end token before this column
    texts = tokenizer.batch_decode(ids[:, P:], skip_special_tokens=True)
    rewards = []  # R_i: 1 if the answer is right, else 0 (App. I)
    for text, each, ended in zip(texts, asked, is_end.any(dim=1), strict=True):
        rewards.append(reward(text, each["answer"], truncated=not ended))
    return Rollouts(ids, is_token, torch.tensor(rewards))


def inverse_cdf(logits: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The token min{y : F(y) > u} of each row: logits [B, V], u [B] uniform in [0, 1) -> [B]."""
    F = logits.softmax(dim=-1).double().cumsum(dim=-1)  # [B, V]; ends at 1 up to rounding
    return torch.searchsorted(F, u[:, None] * F[:, -1:], right=True).squeeze(1)


def print_accuracy(lm, tokenizer, problems: list[dict], seed: int) -> None:
    """Print the mean reward of one sampled and of one greedy response to each problem."""
    every = range(len(problems))
    sampled = sample(lm, tokenizer, problems, every, 1, seed).rewards.mean()
    greedy = sample(lm, tokenizer, problems, every, 1, seed, greedy=True).rewards.mean()
    print(f"accuracy {sampled:.3f}, greedy {greedy:.3f}", flush=True)


def print_response(tokenizer, rollouts: Rollouts, advantage, weight) -> None:
    """Print the response with the largest |A|: its reward, its A, and ρ after each token."""
    length = rollouts.is_token.sum(dim=1)  # [B]
    first = length.cumsum(dim=0) - length  # [B] the place of each first token among the N
    i = advantage[first].abs().argmax()
    ids = rollouts.ids[i, -rollouts.is_token.shape[1] :][: length[i]]
    words = [word.strip() or "newline" for word in tokenizer.batch_decode(ids[:, None])]
    rho = weight[first[i] : first[i] + length[i]].tolist()
    text = "  ".join(f"{word} {w:.2f}" for word, w in zip(words, rho, strict=True))
    print(f"reward {rollouts.rewards[i]:.0f}, A {advantage[first[i]]:.2f}: {text}", flush=True)


if __name__ == "__main__":
    main()
