"""The whole algorithm in one file: trains the toy with DelTA on one device, in about two minutes.

    $ python minimal.py                       # flags: --method dapo, --K 0, --steps 40, --seed 1
    accuracy 0.305, greedy 0.182
    step    1/160  reward 0.195  mixed 0.875  loss -0.0584  grad_norm 0.146  logprob -0.0842
                   |r-1| 0.00152  weight+ 1.16  weight- 0.982
    reward 1, A 2.47: So(1.19)  2(1.19)  *(1.19)  5(1.19)  =(1.19)  0(1.27)  newline(1.19)  ...

This is RLVR, reinforcement learning with verifiable rewards. The toy's problems are chains such as
7*6+1-4, worked from left to right, mod 10. A step samples G responses to each of some problems and
rewards the right ones with 1. A response's advantage A is its reward, compared with the rewards of
the other responses to its problem. The update raises the probability of tokens with A > 0 and
lowers it where A < 0. DAPO gives all tokens of a response the same credit. DelTA multiplies it by a
weight λ from 0.8 (also where A = 0) to 1.2, scaled to mean 1. λ is larger if the token's gradient
is closer to the centroid of its own side, A > 0 or A < 0, than to the other's. The centroids are
refined K times. weight+ and weight- are the mean weights of the two sides.

The last line of this output shows each word with its weight. The weights tell sure words, such as
`Then` and all copies, from unsure ones, which are results. On average, where A > 0 sure words get
the larger weight, where A < 0 unsure ones do. A single response can differ, as above: its result
`0` has the largest. Real text is alike (docs/results/real.md).

This file is the specification of train.py: with the same seed both have, up to rounding, the same
responses, rewards, loss and gradient norm for 512 steps, one pass over the problems
(tests/test_minimal.py). train.py adds other models, data, methods, many GPUs and checkpoints.

Shapes and their sizes here: B 128 responses per step, P 13 tokens in a prompt, T at most 64 in a
response, N about 5,120 response tokens (packed: one row per token, no padding), n of them in a
mini-batch, H 64 hidden units, V 30 words.
"""

import argparse
from typing import NamedTuple

import numpy as np
import torch

import toy
from verify import reward

# The toy's settings; in brackets the paper's (App. I).
PROMPTS = 16  # problems per step (128)
GROUP_SIZE = 8  # G, responses per problem (16)
MINI_BATCH = 4  # problems per update (32)
MAX_NEW_TOKENS = 64  # per response, with the end token (20,480)
LEARNING_RATE = 1e-4  # (1e-6)
WEIGHT_DECAY = 0.1  # released code
MAX_GRAD_NORM = 1.0  # released code
LAM_MIN, LAM_MAX = 0.8, 1.2  # the range of DelTA's coefficients λ (the same)
SEED_STRIDE = 1_000_003  # between the seeds of two runs' orders of problems, as in train.py


def main(argv: list[str] | None = None) -> list[dict]:
    """Train the toy, and print a line per step. Returns the metrics of each step."""
    # Without a usage line an error is one line.
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=argparse.SUPPRESS)
    methods = ["delta", "dapo"]
    parser.add_argument("--method", choices=methods, default="delta", help="the token weights")
    parser.add_argument("--K", type=int, choices=range(10), default=1, help="DelTA's refinements")
    parser.add_argument("--steps", type=int, default=160, help="batches of responses")
    parser.add_argument("--seed", type=int, default=0, help="of problems and of sampling")
    flags = parser.parse_args(argv)
    if flags.K != 1 and flags.method == "dapo":
        parser.error("--K does nothing with --method dapo")

    lm, tokenizer = toy.base_model("learn")  # errs in a * b
    optimizer = torch.optim.AdamW(lm.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    problems = toy.problems(8192, seed=2 * flags.seed)
    held_out = toy.problems(512, seed=1)  # the seeds of training are even
    generator = torch.Generator().manual_seed(SEED_STRIDE * flags.seed)
    order = torch.randperm(len(problems), generator=generator).tolist()

    print_accuracy(lm, tokenizer, held_out, flags.seed)
    metrics = []
    for step in range(1, flags.steps + 1):
        first = (PROMPTS * (step - 1)) % len(order)
        chosen = order[first : first + PROMPTS]  # indices of problems
        rollouts = sample(lm, tokenizer, problems, chosen, GROUP_SIZE, flags.seed, step)
        line, advantage, weight = train_step(lm, optimizer, rollouts, flags.method, flags.K)
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


def train_step(lm, optimizer, rollouts: Rollouts, method: str, K: int = 1) -> tuple:
    """One step: several updates on one batch of responses. Returns (metrics, A [N], ρ [N])."""
    length = rollouts.is_token.sum(dim=1)  # [B]
    advantage = group_advantages(rollouts.rewards, GROUP_SIZE)  # [B]
    advantage = advantage.repeat_interleave(length)  # [N], the same for all tokens of a response

    # One pass at θ_old. The weights ρ come from it and stay fixed during the updates.
    with torch.no_grad():
        old_logprob, hidden = token_outputs(lm, rollouts.ids, rollouts.is_token)  # [N], [N, H]
        weight = token_weights(method, hidden, old_logprob, advantage, K)  # ρ [N]

    # One update per mini-batch of responses.
    mini_batch = torch.arange(len(length)) // (MINI_BATCH * GROUP_SIZE)  # [B] its number: 0 to 3
    mini_batch_of_token = mini_batch.repeat_interleave(length)  # [N]
    losses, norms, away = [], [], 0.0
    for k in range(int(mini_batch.max()) + 1):
        responses = mini_batch == k  # [B]
        tokens = mini_batch_of_token == k  # [N], of which n are True
        if not advantage[tokens].any():
            losses.append(0.0)
            continue  # no gradient; AdamW's momentum and weight decay would still move θ

        # J = (1/n) Σ ρ min(r A, clip(r) A) (Eq. 8). Tokens with A = 0 count in n.
        logprob, _ = token_outputs(lm, rollouts.ids[responses], rollouts.is_token[responses])  # [n]
        surrogate = clipped_surrogate(logprob, old_logprob[tokens], advantage[tokens])
        objective = (weight[tokens] * surrogate).sum() / len(surrogate)
        (-objective).backward()
        norm = torch.nn.utils.clip_grad_norm_(lm.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(-objective.item())
        norms.append(norm.item())
        away = (logprob - old_logprob[tokens]).expm1().abs().mean().item()  # mean |r - 1|

    metrics = {
        "reward": rollouts.rewards.mean().item(),
        "mixed": (rollouts.rewards.view(-1, GROUP_SIZE).std(dim=1) > 0).float().mean().item(),
        "loss": sum(losses) / len(losses),  # no measure of progress: at r = 1 it is -mean(ρ A)
        "grad_norm": sum(norms) / max(1, len(norms)),
        "logprob": old_logprob.mean().item(),
        "|r-1|": away,  # in the last update
    }
    for name, side in (("weight+", advantage > 0), ("weight-", advantage < 0)):
        if side.any():
            metrics[name] = weight[side].mean().item()  # the side's mean ρ
    return metrics, advantage, weight


# ---- responses and rewards -----------------------------------------------------------------------


def sample(lm, tokenizer, problems, chosen, G, seed, step=0, greedy=False) -> Rollouts:
    """G responses o ~ π to each problem in `chosen`, and their rewards."""
    repeated = [problems[i] for i in chosen for _ in range(G)]  # B, one for each response
    prompts = torch.tensor(tokenizer([x["problem"] for x in repeated]).input_ids)  # [B, P]
    P = prompts.shape[1]  # equal for all problems of the toy: no padding on the left

    # Fixed draws instead of do_sample=True: all methods meet the same ones (end of file).
    keys = [(seed, step, i, j) for i in chosen for j in range(G)]
    processors = [] if greedy else [fixed_draws(keys, P)]  # without one: the likeliest token
    ids = lm.generate(prompts, logits_processor=processors, max_new_tokens=MAX_NEW_TOKENS)

    is_end = ids[:, P:] == tokenizer.eos_token_id  # [B, T]
    ends_before = is_end.cumsum(dim=1) - is_end.long()  # [B, T] end tokens before each column
    is_token = ends_before == 0  # the first end token belongs to the response
    texts = tokenizer.batch_decode(ids[:, P:], skip_special_tokens=True)
    rewards = []  # R_i: 1 if the answer is right, else 0 (App. I)
    for text, problem, ended in zip(texts, repeated, is_end.any(dim=1), strict=True):
        # A response that was cut off (not ended) earns 1 only if it has stated its answer.
        rewards.append(reward(text, problem["answer"], truncated=not ended))
    return Rollouts(ids, is_token, torch.tensor(rewards))


# ---- advantages, log-probabilities and surrogate (Sec. 2) ----------------------------------------


def group_advantages(rewards: torch.Tensor, G: int) -> torch.Tensor:
    """A_i = (R_i - mean) / std within each group of G responses: [B] -> [B]."""
    groups = rewards.view(-1, G)  # [B / G, G]
    advantages = groups - groups.mean(dim=1, keepdim=True)
    advantages /= groups.std(dim=1, keepdim=True) + 1e-6
    all_equal = (groups == groups[:, :1]).all(dim=1, keepdim=True)
    return advantages.masked_fill(all_equal, 0.0).flatten()  # exactly 0, despite rounding


def token_outputs(lm, ids: torch.Tensor, is_token: torch.Tensor) -> tuple:
    """(log π_θ of each response token [N], the state h that enters the LM head [N, H])."""
    P = ids.shape[1] - is_token.shape[1]
    states = lm.model(ids).last_hidden_state  # causal: no token attends to the padding after it
    hidden = states[:, P - 1 : -1][is_token]  # [N, H]; the state at t - 1 predicts token t
    token = ids[:, P:][is_token]  # [N]
    logprobs = lm.lm_head(hidden).log_softmax(dim=-1)  # [N, V]
    return logprobs.gather(1, token[:, None]).squeeze(1), hidden


def clipped_surrogate(logprob, old_logprob, A) -> torch.Tensor:
    """min(r A, clip(r, 1-ε_low, 1+ε_high) A) of each token, r = π_θ / π_old: all are [n]."""
    ratio = (logprob - old_logprob).clamp(-20, 20).exp()  # r; 1 before the first update of a step
    surrogate = torch.min(ratio * A, ratio.clamp(1 - 0.2, 1 + 0.28) * A)
    # Dual clip, as in verl: for A < 0 never below -10 |A|, so no exploding ratio can dominate.
    return torch.where(A < 0, torch.max(surrogate, 10 * A), surrogate)


# ---- DelTA's token weights (Sec. 3.2) ------------------------------------------------------------


def token_weights(method: str, hidden, logprob, A, K: int = 1) -> torch.Tensor:
    """ρ [N]: 1 for DAPO, λ̄ for DelTA. hidden [N, H], logprob [N], A [N], K refinements."""
    if method == "dapo" or not (A > 0).any() or not (A < 0).any():
        return torch.ones_like(logprob)  # with one empty side there is nothing to separate

    v = token_gradient_proxy(hidden, logprob)
    margin = margins(v, A, *centroids(v, A))  # Δ⁽⁰⁾
    gamma = temperatures(margin, A)  # γ⁽⁰⁾
    for _ in range(K):
        alpha = torch.sigmoid(margin / gamma)  # α⁽ᵏ⁾ (Eq. 6)
        # γ⁽ᵏ⁺¹⁾ comes from Δ⁽ᵏ⁾, one step late (App. H): γ⁽¹⁾ = γ⁽⁰⁾.
        gamma = temperatures(margin, A)
        margin = margins(v, A, *centroids(v, A, alpha))  # Δ⁽ᵏ⁺¹⁾
    alpha = torch.sigmoid(margin / gamma)  # α*
    lam = torch.where(A == 0, LAM_MIN, LAM_MIN + (LAM_MAX - LAM_MIN) * alpha)  # λ
    return lam / lam.mean()  # λ̄ = λ N / Z with Z = Σ λ (Eq. 8)


def token_gradient_proxy(hidden, logprob) -> torch.Tensor:
    """v = (1 - p) h, the sampled token's row of the LM-head gradient (App. F): [N, H]."""
    one_minus_p = -torch.expm1(logprob)  # [N], accurate for p near 1
    return one_minus_p[:, None] * hidden


def centroids(v, A, alpha=None) -> tuple[torch.Tensor, torch.Tensor]:
    """μ₊ and μ₋ [H]: each side's mean of v, weighted by |A| (Eq. 3), or by α |A| (Eq. 7)."""
    mass = A if alpha is None else alpha * A
    mass_pos, mass_neg = mass.clamp(min=0), (-mass).clamp(min=0)  # [N]
    return (mass_pos / mass_pos.sum()) @ v, (mass_neg / mass_neg.sum()) @ v


def margins(v, A, mu_pos, mu_neg) -> torch.Tensor:
    """Δ [N] = ‖v - μ_other‖² - ‖v - μ_own‖², and 0 where A = 0. ‖v‖² cancels (App. G)."""
    margin_pos = 2 * (v @ (mu_pos - mu_neg)) + mu_neg @ mu_neg - mu_pos @ mu_pos
    return A.sign() * margin_pos  # A > 0: ‖v-μ₋‖² - ‖v-μ₊‖²; swapped for A < 0


def temperatures(margin, A) -> torch.Tensor:
    """γ [N]: the standard deviation of Δ over the tokens of the token's side (App. H)."""
    gamma_pos, gamma_neg = margin[A > 0].std(correction=0), margin[A < 0].std(correction=0)
    return torch.where(A > 0, gamma_pos, gamma_neg).clamp(min=1e-6)


# ---- common random numbers -----------------------------------------------------------------------
# Methods are compared on the same draws: the uniform number behind a token is fixed by (seed, step,
# problem, sample, position). train.py has the same numbers.


def fixed_draws(keys: list[tuple], P: int):
    """A logits processor for `generate`: token t is drawn by number t of a key's generator."""
    draws = [np.random.default_rng(key).random(MAX_NEW_TOKENS) for key in keys]
    draws = torch.from_numpy(np.stack(draws))  # [B, MAX_NEW_TOKENS]

    def only_the_drawn(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] that leave `generate` no choice: 0 for the drawn token, else -inf."""
        token = inverse_cdf(logits, draws[:, ids.shape[1] - P])
        return torch.full_like(logits, -torch.inf).scatter(1, token[:, None], 0.0)

    return only_the_drawn


def inverse_cdf(logits: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The token min{y : F(y) > u} of each row: logits [B, V], u [B] uniform in [0, 1) -> [B]."""
    F = logits.softmax(dim=-1).double().cumsum(dim=-1)  # [B, V]; ends at 1 up to rounding
    return torch.searchsorted(F, u[:, None] * F[:, -1:], right=True).squeeze(1)


# ---- printing ------------------------------------------------------------------------------------


def print_accuracy(lm, tokenizer, problems: list[dict], seed: int) -> None:
    """Print the mean reward of one sampled and of one greedy response to each problem."""
    every = range(len(problems))
    sampled = sample(lm, tokenizer, problems, every, 1, seed).rewards.mean()
    greedy = sample(lm, tokenizer, problems, every, 1, seed, greedy=True).rewards.mean()
    print(f"accuracy {sampled:.3f}, greedy {greedy:.3f}", flush=True)


def print_response(tokenizer, rollouts: Rollouts, advantage, weight) -> None:
    """Print the response with the largest |A|: its reward, its A, and ρ after each token."""
    length = rollouts.is_token.sum(dim=1)  # [B]
    first = length.cumsum(dim=0) - length  # [B] the index of each first token among the N
    i = advantage[first].abs().argmax()
    P = rollouts.ids.shape[1] - rollouts.is_token.shape[1]
    ids = rollouts.ids[i, P:][rollouts.is_token[i]]
    words = [word.strip() or "newline" for word in tokenizer.batch_decode(ids[:, None])]
    rho = weight[first[i] : first[i] + length[i]].tolist()
    text = "  ".join(f"{word}({w:.2f})" for word, w in zip(words, rho, strict=True))
    print(f"reward {rollouts.rewards[i]:.0f}, A {advantage[first[i]]:.2f}: {text}", flush=True)


if __name__ == "__main__":
    main()
