"""DelTA in one file: trains the toy, or any Hugging Face model, on one device.

    $ python minimal.py  # the toy, in two minutes on a CPU; also with --method dapo, or with --K 0
    $ python minimal.py --model Qwen/Qwen3-0.6B-Base --data problems.jsonl --save trained

A line of data is {"problem": ..., "answer": ...}. The toy's problems are chains such as 7*6+1-4,
worked from left to right, mod 10. A step samples G responses to each of some problems, and rewards
the right ones with 1. A response's advantage A compares its reward with the other rewards of its
problem. The update raises the probability of tokens with A > 0 and lowers it where A < 0. DAPO
gives all tokens of a response the same credit. DelTA multiplies it by a weight λ from 0.8 to 1.2,
scaled to mean 1. λ is larger if the token's gradient is closer to the centroid of its own side,
A > 0 or A < 0, than to the other's; where A = 0 it is 0.8. The centroids are refined K times.

All of that is here. Models, prompts and grades come from infra/, as in train.py, which makes the
same steps with the same settings, up to rounding.

Shapes, with the toy's sizes: B 128 responses, P 13 tokens of a prompt, T at most 64 of a response,
L = P + T, N about 5,120 response tokens (packed: one row per token, no padding), n of them in a
mini-batch or a pass of the model, H 64 hidden units, V 30 words.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from infra.errors import UserError, one_line_endings
from infra.flags import Parser, flag
from infra.grading import graded
from infra.head import full_logits
from infra.loading import autocast, decoder_of, load_model
from infra.log import EQUAL_REWARDS, print_response, shown_prompt
from infra.model_files import saved_at_the_end
from infra.onednn import packed_weights
from infra.problems import encode_prompts, load_sets, refuse_length
from infra.sampler import left_padded
from infra.tokens import text_decoder
from rollout import problems_of_step

WEIGHT_DECAY, MAX_GRAD_NORM = 0.1, 1.0  # released code
LAM_MIN, LAM_MAX = 0.8, 1.2  # the range of DelTA's coefficients λ (the paper's)


@dataclass
class Settings:
    """The flags, such as --group-size, with the toy's values; in brackets the paper's (App. I)."""

    method: str = flag("delta", "the token weights", ["delta", "dapo"])
    K: int = flag(1, "refinements of DelTA's centroids", low=0, high=1000)
    steps: int = flag(160, "batches of responses (220)", low=1)
    prompts: int = flag(16, "problems per step (128)", low=1)
    group_size: int = flag(8, "G, responses per problem (16)", low=2)
    mini_batch: int = flag(4, "problems per update (32)", low=1)
    micro_batch: int = flag(16, "responses in a pass with gradients", low=1)
    max_new_tokens: int = flag(64, "longest response, with its end token (20,480)", low=1)
    lr: float = flag(1e-4, "AdamW's learning rate (1e-6)", above=0)
    seed: int = flag(0, "of problems and of sampling", low=0, high=10**12)
    model: str = flag("toy", "`toy`, or a Hugging Face folder or hub id")
    data: str = flag("toy", "problems: a .jsonl, .json, .csv or .parquet file, or a known name")
    eval_data: str = flag("toy-held-out", "others, for the accuracy before and after")
    problem_column: str = flag("problem", "the column of problems")
    answer_column: str = flag("answer", "the column of answers")
    prompt_template: str = flag("", "a prompt with {problem} in it; default: the chat template")
    max_prompt_tokens: int = flag(2048, "longer prompts are dropped", low=1)
    reward: str = flag("", "a function of your own, FILE.py:FUNCTION; default: verify.py's")
    save: str = flag("", "a new folder for the trained model; Ctrl-C saves it, too")


# The defaults with --model. A pass with gradients has 3 tensors [n, V] in float32 (n up to 4 x 512
# tokens, Qwen3's V: 3.7 GB); weights, gradients and AdamW take 16 bytes a parameter.
FOR_MODELS = {"micro_batch": 4, "max_new_tokens": 512, "lr": 1e-6, "data": "", "eval_data": ""}


# An error that a user can mend, or Ctrl-C, ends the program with one line and no traceback.
@one_line_endings("minimal.py", resume="", memory="lower --micro-batch or --prompts")
def main(argv: list[str] | None = None) -> list[dict]:
    """Train, and print a line per step. Returns the metrics of each step."""
    cfg = parse_flags(argv)
    # A problem is {"problem": text, "answer": text}. An answer that cannot be earned is refused.
    columns = (cfg.problem_column, cfg.answer_column)
    problems, held_out = load_sets(cfg.data, cfg.eval_data, cfg.seed, columns, cfg.reward)

    # In float32; under autocast() its layers compute in bfloat16 on a GPU. Refused if log p by
    # `generate` or token_outputs is not that of its forward pass. Of its generation config only the
    # end tokens stay, so `generate` is greedy, without penalties.
    lm, tokenizer = load_model(cfg.model, outputs=token_outputs)

    problems = with_prompts(problems, tokenizer, cfg)
    held_out = with_prompts(held_out, tokenizer, cfg)
    prompts = [problem["prompt_ids"] for problem in problems + held_out]
    refuse_length(lm.config, prompts, cfg.max_new_tokens)
    shown_prompt(tokenizer, prompts[0], lm.generation_config.eos_token_id)  # ids that end responses

    optimizer = torch.optim.AdamW(lm.parameters(), lr=cfg.lr, weight_decay=WEIGHT_DECAY)
    lines = []
    # Makes the folder --save now. The template is saved, too, for evaluate.py.
    with saved_at_the_end(cfg.save, lm, tokenizer, {"prompt_template": cfg.prompt_template}):
        print_accuracy(lm, tokenizer, held_out, cfg)
        for step in range(1, cfg.steps + 1):
            chosen = problems_of_step(len(problems), step, cfg.prompts, cfg.seed)  # indices
            rollouts = sample(lm, tokenizer, problems, chosen, cfg, step)
            metrics, A, rho = train_step(lm, optimizer, rollouts, cfg)
            numbers = "  ".join(f"{name} {value:.3g}" for name, value in metrics.items())
            print(f"step {step:4d}/{cfg.steps}  {numbers}", flush=True)
            if step in (1, cfg.steps):
                print_response(tokenizer, rollouts, A, rho)  # the one with the largest |A|
            lines.append(metrics)
            if step >= 3 and not any(line["mixed"] for line in lines[-3:]):
                print(EQUAL_REWARDS)
            if step >= 3 and all(line["mixed"] and not line["grad_norm"] for line in lines[-3:]):
                raise FloatingPointError("the gradient was not finite in three steps in a row")
        print_accuracy(lm, tokenizer, held_out, cfg)
    return lines


def parse_flags(argv: list[str] | None) -> Settings:
    """The settings, from the command line. Raises UserError."""
    about = f"With --model the defaults are {FOR_MODELS}."
    given = vars(Parser(Settings, "minimal.py", about).parse_args(argv))
    with_model = given.get("model", "toy") != "toy"
    if "data" in given and not with_model:
        raise UserError("--data needs --model: the toy has its own problems")
    cfg = Settings(**(FOR_MODELS if with_model else {}) | given)
    if "K" in given and cfg.method == "dapo":
        raise UserError("--K does nothing with --method dapo")
    return cfg


def with_prompts(problems: list[dict], tokenizer, cfg: Settings) -> list[dict]:
    """The problems, each with "prompt_ids", its tokens; those with too long prompts are dropped."""
    kept, prompts = encode_prompts(problems, tokenizer, cfg.max_prompt_tokens, cfg.prompt_template)
    return [problem | {"prompt_ids": ids} for problem, ids in zip(kept, prompts, strict=True)]


class Rollouts(NamedTuple):
    """B prompts with a response each; the G responses to a problem are consecutive."""

    ids: torch.Tensor  # [B, L] prompt, response, padding
    is_token: torch.Tensor  # [B, L] whether a column is a token of the response; N are True
    rewards: torch.Tensor  # [B] R_i
    sampler_logprob: torch.Tensor  # [B, L] log p of the response's tokens as they were drawn


def train_step(lm, optimizer, rollouts: Rollouts, cfg: Settings) -> tuple:
    """One step: several updates on one batch of responses. Returns (metrics, A [N], ρ [N])."""
    ids, is_token, rewards, sampler_logprob = rollouts
    response_of_token = is_token.nonzero()[:, 0]  # [N] each token's row of ids
    advantage = group_advantages(rewards, cfg.group_size)  # [B]
    A = advantage[response_of_token]  # [N]

    # One pass at θ_old. The weights ρ come from it and stay fixed during the updates.
    with torch.no_grad():
        old_logprob, hidden = token_outputs(lm, ids, is_token, cfg.micro_batch)  # [N], [N, H]
        rho = token_weights(cfg.method, hidden, old_logprob, A, cfg.K)  # ρ [N]

    responses = torch.arange(len(ids), device=ids.device)  # [B] their numbers
    mini_batches = responses.split(cfg.mini_batch * cfg.group_size)  # each gives one update
    loss, norms, away = 0.0, [], 0.0
    for mini_batch in mini_batches:
        if not advantage[mini_batch].any():
            continue  # no gradient; AdamW's momentum and weight decay would still move θ

        # J = (1/n) Σ ρ min(r A, clip(r) A) over the mini-batch's n tokens (Eq. 8; ρ = λ N / Z, with
        # Z of the whole batch). It is a sum, so the gradients of its parts add up.
        n = is_token[mini_batch].sum()  # tokens with A = 0 count
        away = 0.0  # the mean |r - 1|
        for micro in mini_batch.split(cfg.micro_batch):
            tokens = torch.isin(response_of_token, micro)  # [N] True for those of `micro`
            logprob, _ = token_outputs(lm, ids[micro], is_token[micro], cfg.micro_batch)
            surrogate = clipped_surrogate(logprob, old_logprob[tokens], A[tokens])
            objective = (rho[tokens] * surrogate).sum() / n
            (-objective).backward()
            loss -= objective.item() / len(mini_batches)
            away += (logprob - old_logprob[tokens]).expm1().abs().sum().item() / n.item()
        norm = clip_grad_norm_(lm.parameters(), MAX_GRAD_NORM)
        if norm.isfinite():
            optimizer.step()
            norms.append(norm.item())
        optimizer.zero_grad()

    groups = rewards.view(-1, cfg.group_size)
    metrics = {
        "reward": rewards.mean().item(),
        "mixed": (groups.std(dim=1) > 0).float().mean().item(),  # problems with unequal rewards
        "loss": loss,  # no measure of progress: at r = 1 it is -mean(ρ A)
        "grad_norm": sum(norms) / max(1, len(norms)),
        "logprob": old_logprob.mean().item(),
        "mismatch": (old_logprob - sampler_logprob[is_token]).abs().mean().item(),
        "|r-1|": away,  # in the last update
        "length": is_token.sum(dim=1).float().mean().item(),
    }
    sides = (("weight+", A > 0), ("weight-", A < 0))  # mean ρ of each
    metrics |= {name: rho[side].mean().item() for name, side in sides if side.any()}
    return metrics, A, rho


def sample(lm, tokenizer, problems, chosen, cfg: Settings, step=0, greedy=False) -> Rollouts:
    """G responses o ~ π to each problem in `chosen`, a list of indices, and their rewards."""
    index = [i for i in chosen for _ in range(cfg.group_size)]  # [B] each response's problem
    asked = [problems[i] for i in index]
    prompts = [problem["prompt_ids"] for problem in asked]
    ids, mask = left_padded(prompts, lm.device)  # [B, P]; the mask is 0 at padding
    P = ids.shape[1]  # responses begin at column P
    limit = cfg.max_new_tokens

    # Fixed draws instead of do_sample=True: all methods meet the same ones. A key is (seed, step,
    # problem, number of the response among those to its problem).
    keys = [(cfg.seed, step, i, index[:b].count(i)) for b, i in enumerate(index)]
    logprob = torch.zeros(len(ids), P + limit, device=lm.device)  # fixed_draws fills it
    draws = [] if greedy else [fixed_draws(keys, P, logprob)]
    with autocast(), packed_weights(lm):  # packed: faster products on a CPU
        ids = lm.generate(ids, attention_mask=mask, logits_processor=draws, max_new_tokens=limit)

    ends = torch.tensor(lm.generation_config.eos_token_id, device=lm.device)
    is_end = torch.isin(ids[:, P:], ends)  # [B, T]
    ends_before = is_end.cumsum(dim=1) - is_end.long()  # [B, T] end tokens before each column
    is_token = torch.zeros_like(ids, dtype=torch.bool)  # [B, L]
    is_token[:, P:] = ends_before == 0  # the first end token belongs to the response

    # R_i is 1 if the final answer is right (App. I): the last \boxed{}, else a stated one ("the
    # answer is 7"), else the last number, which does not count if the response was cut off.
    decode = text_decoder(tokenizer)  # it reads the prompt too, which may open a thought
    texts = [decode(prompts[b], ids[b][is_token[b]].tolist()) for b in range(len(ids))]
    truncated = ~is_end.any(dim=1)  # [B]
    rewards = graded(texts, asked, truncated.tolist(), cfg.reward)

    # The padding moves behind the response: no token attends to it there, without any mask.
    logprob = logprob[:, : ids.shape[1]]
    for i, padding in enumerate((mask == 0).sum(dim=1).tolist()):
        for x in (ids, is_token, logprob):
            x[i] = x[i].roll(-padding)
    return Rollouts(ids, is_token, torch.tensor(rewards, device=lm.device), logprob)


def group_advantages(rewards: torch.Tensor, G: int) -> torch.Tensor:
    """A_i = (R_i - mean) / std within each group of G responses: [B] -> [B]."""
    groups = rewards.view(-1, G)  # [B / G, G]
    advantages = groups - groups.mean(dim=1, keepdim=True)
    advantages /= groups.std(dim=1, keepdim=True) + 1e-6
    all_equal = (groups == groups[:, :1]).all(dim=1, keepdim=True)
    return advantages.masked_fill(all_equal, 0.0).flatten()  # exactly 0, despite rounding


def token_outputs(lm, ids: torch.Tensor, is_token: torch.Tensor, micro_batch: int = 16) -> tuple:
    """(log π_θ of each response token [n], the state h that enters the LM head [n, H])."""
    logprobs, states = [], []
    for block, own in zip(ids.split(micro_batch), is_token.split(micro_batch), strict=True):
        with autocast():
            state = decoder_of(lm)(block, use_cache=False).last_hidden_state  # [b, L, H]
        hidden = state[:, :-1][own[:, 1:]].float()  # the state at t - 1 predicts token t
        logits = full_logits(lm, hidden)  # [n, V], W h in float32; some models scale or cap it
        logprob = logits.log_softmax(dim=-1).gather(1, block[own][:, None])
        logprobs.append(logprob.squeeze(1))
        states.append(hidden)
    return torch.cat(logprobs), torch.cat(states)


def clipped_surrogate(logprob, old_logprob, A) -> torch.Tensor:
    """min(r A, clip(r, 1-ε_low, 1+ε_high) A) of each token, r = π_θ / π_old: all are [n]."""
    ratio = (logprob - old_logprob).clamp(-20, 20).exp()  # r; 1 before the first update of a step
    surrogate = torch.min(ratio * A, ratio.clamp(1 - 0.2, 1 + 0.28) * A)
    # Dual clip, as in verl: for A < 0 never below -10 |A|, so no exploding ratio can dominate.
    return torch.where(A < 0, torch.max(surrogate, 10 * A), surrogate)


def token_weights(method: str, hidden, logprob, A, K: int = 1) -> torch.Tensor:
    """ρ [N]: 1 for DAPO, λ̄ for DelTA. hidden [N, H], logprob [N], A [N], K refinements."""
    if method == "dapo" or not (A > 0).any() or not (A < 0).any():
        return torch.ones_like(logprob)  # with one empty side there is nothing to separate

    v = token_gradient_proxy(hidden, logprob)
    margin = margins(v, A, *centroids(v, A))  # Δ⁽⁰⁾
    gamma = temperatures(margin, A)  # γ⁽⁰⁾
    for _ in range(K):
        alpha = torch.sigmoid(margin / gamma)  # α⁽ᵏ⁾ (Eq. 6)
        # γ⁽ᵏ⁺¹⁾ is taken from Δ⁽ᵏ⁾, before the centroids move (App. H): so γ⁽¹⁾ = γ⁽⁰⁾.
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


def fixed_draws(keys: list[tuple], P: int, logprob: torch.Tensor):
    """A logits processor for `generate`: token t is drawn by number t of a key's generator.

    The drawn token's logit becomes 0, all others -inf. Its log p goes into logprob [B, P + T].
    """
    numbers = [np.random.default_rng(key).random(logprob.shape[1] - P) for key in keys]
    draws = torch.from_numpy(np.stack(numbers)).to(logprob.device)  # [B, T]

    def only_the_drawn(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        column = ids.shape[1]
        logp = logits.log_softmax(dim=-1)  # [B, V]
        if logp.isnan().any():
            raise FloatingPointError("the model's logits are not finite")
        token = inverse_cdf(logits, draws[:, column - P])[:, None]
        logprob[:, column] = logp.gather(1, token).squeeze(1)
        return torch.full_like(logits, -torch.inf).scatter(1, token, 0.0)

    return only_the_drawn


def inverse_cdf(logits: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The token min{y : F(y) > u} of each row: logits [B, V], u [B] uniform in [0, 1) -> [B]."""
    F = logits.softmax(dim=-1).double().cumsum(dim=-1)  # [B, V]; ends at 1 up to rounding
    return torch.searchsorted(F, u[:, None] * F[:, -1:], right=True).squeeze(1)


def print_accuracy(lm, tokenizer, problems: list[dict], cfg: Settings) -> None:
    """Print the mean reward of one sampled and of one greedy response to each problem."""
    if not problems:
        return
    one = replace(cfg, group_size=1)
    sampled, greedy = [], []
    for part in torch.arange(len(problems)).split(cfg.prompts * cfg.group_size):  # as in a step
        sampled.append(sample(lm, tokenizer, problems, part.tolist(), one).rewards)
        greedy.append(sample(lm, tokenizer, problems, part.tolist(), one, greedy=True).rewards)
    print(f"accuracy {torch.cat(sampled).mean():.3f}, greedy {torch.cat(greedy).mean():.3f}")


if __name__ == "__main__":
    main()
