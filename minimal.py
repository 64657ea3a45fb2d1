"""DelTA in one file: trains the toy, or any Hugging Face model, on one device.

    $ python minimal.py  # the toy, in two minutes on a CPU; also with --method dapo, or with --K 0
    $ python minimal.py --model Qwen/Qwen3-0.6B-Base --data problems.jsonl --save trained

A line of data is {"problem": ..., "answer": ...}. The toy's problems are chains such as 7*6+1-4,
worked from left to right, mod 10. A step samples G responses to each of some problems, and rewards
the right ones with 1. A response's advantage A compares its reward with the other rewards of its
problem. The update raises the probability of tokens with A > 0 and lowers it where A < 0. DAPO
gives all tokens of a response the same credit. DelTA multiplies it by a weight λ from 0.8 (also
where A = 0) to 1.2, scaled to mean 1. λ is larger if the token's gradient is closer to the centroid
of its own side, A > 0 or A < 0, than to the other's. The centroids are refined K times.

With the same settings train.py makes the same steps, up to rounding, until the problems come round
a second time: then it shuffles them anew.

Shapes, with the toy's sizes: B 128 responses, P 13 tokens of a prompt, T at most 64 of a response,
L = P + T, N about 5,120 response tokens (packed: one row per token, no padding), n of them in a
mini-batch or a pass of the model, H 64 hidden units, V 30 words.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import toy
from verify import reward

WEIGHT_DECAY = 0.1  # released code
MAX_GRAD_NORM = 1.0  # released code
LAM_MIN, LAM_MAX = 0.8, 1.2  # the range of DelTA's coefficients λ (the paper's)
SEED_STRIDE = 1_000_003  # train.py shuffles the problems with SEED_STRIDE * seed - epoch
BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."


class Settings(NamedTuple):
    """The flags, such as --group-size, with the toy's values; in brackets the paper's (App. I)."""

    model: str = ""  # a Hugging Face id or folder; without it the toy
    data: str = ""  # for --model: a .jsonl file of problems
    eval_data: str = ""  # for --model: another, for the accuracy before and after
    template: str = "{problem}"  # the prompt
    save: str = ""  # a new folder for the trained model
    method: str = "delta"  # the token weights: delta or dapo
    K: int = 1  # DelTA's refinements
    steps: int = 160  # batches of responses
    prompts: int = 16  # problems per step (128)
    group_size: int = 8  # G, responses per problem (16)
    mini_batch: int = 4  # problems per update (32)
    micro_batch: int = 16  # responses in a pass; only `generate` runs all of a step at once
    max_new_tokens: int = 64  # per response, with the end token (20,480)
    lr: float = 1e-4  # (1e-6)
    seed: int = 0  # of problems and of sampling


FOR_MODELS = {"template": "", "max_new_tokens": 512, "lr": 1e-6}  # defaults with --model


def main(argv: list[str] | None = None) -> list[dict]:
    """Train, and print a line per step. Returns the metrics of each step."""
    cfg = parse_flags(argv)
    try:
        lm, tokenizer, problems, held_out = load(cfg)
    except OSError as error:  # a wrong name of a file or a model
        parser.error(str(error).partition("\n")[0])
    optimizer = torch.optim.AdamW(lm.parameters(), lr=cfg.lr, weight_decay=WEIGHT_DECAY)
    generator = torch.Generator().manual_seed(SEED_STRIDE * cfg.seed)
    order = torch.randperm(len(problems), generator=generator).tolist()

    if held_out:
        print_accuracy(lm, tokenizer, held_out, cfg)
    lines = []
    for step in range(1, cfg.steps + 1):
        first = cfg.prompts * (step - 1)
        chosen = [order[i % len(order)] for i in range(first, first + cfg.prompts)]
        rollouts = sample(lm, tokenizer, problems, chosen, cfg, step)
        metrics, A, rho = train_step(lm, optimizer, rollouts, cfg)
        numbers = "  ".join(f"{name} {value:.3g}" for name, value in metrics.items())
        print(f"step {step:4d}/{cfg.steps}  {numbers}", flush=True)
        if step in (1, cfg.steps):
            print_response(tokenizer, rollouts, A, rho)
        lines.append(metrics)
    if held_out:
        print_accuracy(lm, tokenizer, held_out, cfg)
    if cfg.save:
        lm.save_pretrained(cfg.save)
        tokenizer.save_pretrained(cfg.save)
    return lines


class Rollouts(NamedTuple):
    """B prompts with a response each; the G responses to a problem are consecutive."""

    ids: torch.Tensor  # [B, L] prompt, response, padding
    is_token: torch.Tensor  # [B, L] whether a column is a token of the response; N are True
    rewards: torch.Tensor  # [B] R_i


def train_step(lm, optimizer, rollouts: Rollouts, cfg: Settings) -> tuple:
    """One step: several updates on one batch of responses. Returns (metrics, A [N], ρ [N])."""
    ids, is_token, rewards = rollouts
    length = is_token.sum(dim=1)  # [B]
    responses = torch.arange(len(ids), device=ids.device)  # [B] their numbers
    response_of_token = responses.repeat_interleave(length)  # [N]
    advantage = group_advantages(rewards, cfg.group_size)  # [B]
    A = advantage[response_of_token]  # [N]

    # One pass at θ_old. The weights ρ come from it and stay fixed during the updates.
    with torch.no_grad():
        old_logprob, hidden = token_outputs(lm, ids, is_token, cfg.micro_batch)  # [N], [N, H]
        weight = token_weights(cfg.method, hidden, old_logprob, A, cfg.K)  # ρ [N]

    # One update per mini-batch of responses.
    mini_batches = responses.split(cfg.mini_batch * cfg.group_size)
    loss, norms, away = 0.0, [], 0.0
    for mini_batch in mini_batches:
        if not advantage[mini_batch].any():
            continue  # no gradient; AdamW's momentum and weight decay would still move θ

        # J = (1/n) Σ ρ min(r A, clip(r) A) over the mini-batch's n tokens (Eq. 8; ρ = λ N / Z, with
        # Z of the whole batch). It is a sum, so the gradients of its parts add up.
        n, away = length[mini_batch].sum(), 0.0  # tokens with A = 0 count in n
        for part in mini_batch.split(cfg.micro_batch):
            tokens = torch.isin(response_of_token, part)  # [N]
            logprob, _ = token_outputs(lm, ids[part], is_token[part], cfg.micro_batch)
            surrogate = clipped_surrogate(logprob, old_logprob[tokens], A[tokens])
            objective = (weight[tokens] * surrogate).sum() / n
            (-objective).backward()
            loss -= objective.item() / len(mini_batches)
            away += (logprob - old_logprob[tokens]).expm1().abs().sum().item() / n.item()
        norm = clip_grad_norm_(lm.parameters(), MAX_GRAD_NORM, error_if_nonfinite=True)
        optimizer.step()
        optimizer.zero_grad()
        norms.append(norm.item())

    metrics = {
        "reward": rewards.mean().item(),
        "mixed": (rewards.view(-1, cfg.group_size).std(dim=1) > 0).float().mean().item(),
        "loss": loss,  # no measure of progress: at r = 1 it is -mean(ρ A)
        "grad_norm": sum(norms) / max(1, len(norms)),
        "logprob": old_logprob.mean().item(),
        "|r-1|": away,  # the mean in the last update
        "length": length.float().mean().item(),
    }
    for name, side in (("weight+", A > 0), ("weight-", A < 0)):
        if side.any():
            metrics[name] = weight[side].mean().item()  # the side's mean ρ
    return metrics, A, weight


def sample(lm, tokenizer, problems, chosen, cfg: Settings, step=0, greedy=False) -> Rollouts:
    """G responses o ~ π to each problem in `chosen`, and their rewards."""
    repeated = [problems[i] for i in chosen for _ in range(cfg.group_size)]  # B, one per response
    prompts = encode(tokenizer, repeated, cfg.template).to(lm.device)
    P = prompts.input_ids.shape[1]  # their padding is on the left: responses begin at column P

    # Fixed draws instead of do_sample=True: all methods meet the same ones.
    keys = [(cfg.seed, step, i, j) for i in chosen for j in range(cfg.group_size)]
    processors = [] if greedy else [fixed_draws(keys, P, cfg.max_new_tokens)]
    with torch.autocast(lm.device.type, torch.bfloat16, enabled=lm.device.type == "cuda"):
        ids = lm.generate(**prompts, logits_processor=processors, max_new_tokens=cfg.max_new_tokens)

    ends = torch.tensor(lm.generation_config.eos_token_id, device=lm.device)
    is_end = torch.isin(ids[:, P:], ends)  # [B, T]
    ends_before = is_end.cumsum(dim=1) - is_end.long()  # [B, T] end tokens before each column
    is_token = torch.zeros_like(ids, dtype=torch.bool)  # [B, L]
    is_token[:, P:] = ends_before == 0  # the first end token belongs to the response

    padding = (P - prompts.attention_mask.sum(dim=1)).tolist()  # [B]
    rewards = []  # R_i: 1 if the last \boxed{}, else what is stated, equals the answer (App. I)
    for i, problem in enumerate(repeated):
        text = tokenizer.decode(ids[i][is_token[i]], skip_special_tokens=True)
        # Of a response that was cut off only a stated answer counts, not its last number.
        rewards.append(reward(text, problem["answer"], truncated=not is_end[i].any()))
        # The padding moves behind the response: no token attends to it there, without any mask.
        ids[i] = ids[i].roll(-padding[i])
        is_token[i] = is_token[i].roll(-padding[i])
    return Rollouts(ids, is_token, torch.tensor(rewards, dtype=torch.float32, device=lm.device))


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
    for row, own in zip(ids.split(micro_batch), is_token.split(micro_batch), strict=True):
        with torch.autocast(lm.device.type, torch.bfloat16, enabled=lm.device.type == "cuda"):
            state = lm.get_decoder()(row, use_cache=False).last_hidden_state  # [b, L, H]
        hidden = state[:, :-1][own[:, 1:]].float()  # the state at t - 1 predicts token t
        logits = lm.get_output_embeddings()(hidden)  # [., V] in float32, also on a GPU
        logprob = logits.log_softmax(dim=-1).gather(1, row[own][:, None])
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


def fixed_draws(keys: list[tuple], P: int, count: int):
    """A logits processor for `generate`: token t is drawn by number t of a key's generator."""
    draws = np.stack([np.random.default_rng(key).random(count) for key in keys])  # [B, count]

    def only_the_drawn(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] that leave `generate` no choice: 0 for the drawn token, else -inf."""
        u = torch.from_numpy(draws[:, ids.shape[1] - P]).to(logits.device)  # [B]
        token = inverse_cdf(logits, u)
        return torch.full_like(logits, -torch.inf).scatter(1, token[:, None], 0.0)

    return only_the_drawn


def inverse_cdf(logits: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The token min{y : F(y) > u} of each row: logits [B, V], u [B] uniform in [0, 1) -> [B]."""
    F = logits.softmax(dim=-1).double().cumsum(dim=-1)  # [B, V]; ends at 1 up to rounding
    return torch.searchsorted(F, u[:, None] * F[:, -1:], right=True).squeeze(1)


def print_accuracy(lm, tokenizer, problems: list[dict], cfg: Settings) -> None:
    """Print the mean reward of one sampled and of one greedy response to each problem."""
    one = cfg._replace(group_size=1)
    sampled, greedy = [], []
    for part in torch.arange(len(problems)).split(cfg.prompts * cfg.group_size):  # as in a step
        sampled.append(sample(lm, tokenizer, problems, part.tolist(), one).rewards)
        greedy.append(sample(lm, tokenizer, problems, part.tolist(), one, greedy=True).rewards)
    print(f"accuracy {torch.cat(sampled).mean():.3f}, greedy {torch.cat(greedy).mean():.3f}")


def print_response(tokenizer, rollouts: Rollouts, A, rho) -> None:
    """Print the response with the largest |A|: its reward, its A, and ρ after each token."""
    first = int(A.abs().argmax())  # its first token, among N
    i = rollouts.is_token.nonzero()[first, 0]  # its row, among B
    tokens = rollouts.ids[i][rollouts.is_token[i]]
    words = [word.strip() or "newline" for word in tokenizer.batch_decode(tokens[:, None])]
    of_words = rho[first : first + len(tokens)].tolist()
    text = "  ".join(f"{word}({w:.2f})" for word, w in zip(words, of_words, strict=True))
    print(f"reward {rollouts.rewards[i]:.0f}, A {A[first]:.2f}: {text}", flush=True)


# ---- flags, problems and models: what follows is not part of the algorithm -----------------------

parser = argparse.ArgumentParser(prog="minimal.py", usage=argparse.SUPPRESS)  # errors are one line
for name, default in Settings._field_defaults.items():
    flag = "--" + name.replace("_", "-")
    parser.add_argument(flag, type=type(default), default=argparse.SUPPRESS, help=f"{default!r}")


def parse_flags(argv: list[str] | None) -> Settings:
    """The settings, with the flags on the command line. A mistake ends in one line."""
    given = vars(parser.parse_args(argv))
    defaults = FOR_MODELS if given.get("model") else {}
    cfg = Settings(**(defaults | given))
    if cfg.method not in ("delta", "dapo"):
        parser.error("--method is delta or dapo: for others see train.py")
    if cfg.method == "dapo" and "K" in given:
        parser.error("--K does nothing with --method dapo")
    if bool(cfg.model) != bool(cfg.data) or cfg.eval_data and not cfg.model:
        parser.error("--model and --data need each other, and --eval-data needs both")
    if cfg.group_size < 2:
        parser.error("--group-size must be 2 or more: an advantage compares a problem's responses")
    if cfg.template and "{problem}" not in cfg.template:
        parser.error("--template has no {problem}")
    if cfg.save and Path(cfg.save).exists():
        parser.error(f"--save {cfg.save} exists: name a new folder")
    return cfg._replace(template=cfg.template.replace("\\n", "\n"))  # \n as typed in a shell


def load(cfg: Settings) -> tuple:
    """(model, tokenizer, problems, held-out problems)."""
    if not cfg.model:
        lm, tokenizer = toy.base_model("learn")  # already trained; its likeliest a * b is wrong
        held_out = toy.problems(512, seed=1)  # the seeds of the problems for training are even
        return lm, tokenizer, toy.problems(8192, seed=2 * cfg.seed), held_out

    problems = read(cfg.data)
    held_out = read(cfg.eval_data) if cfg.eval_data else []
    if len(problems) < cfg.prompts:  # one would come twice, with the same responses
        parser.error(f"{cfg.data} has {len(problems)} problems, fewer than --prompts")
    tokenizer = AutoTokenizer.from_pretrained(cfg.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    how = {"dtype": torch.float32, "output_loading_info": True}
    lm, info = AutoModelForCausalLM.from_pretrained(cfg.model, **how)
    if info["missing_keys"]:  # these weights would be random
        parser.error(f"--model {cfg.model} has no {min(info['missing_keys'])}: see train.py")
    ends = lm.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    if tokenizer.chat_template:  # the token that closes a turn may be missing: <|im_end|>
        chat = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "1+1=2"}]
        behind = tokenizer.apply_chat_template(chat, tokenize=False).partition("1+1=2")[2].strip()
        added = tokenizer.get_added_vocab()
        ends.update(added[token] for token in added if behind.startswith(token))
    elif not cfg.template:
        parser.error("the model has no chat template: pass --template 'Q: {problem}\\nA:'")

    # Of the generation config only the end tokens stay: a repetition penalty would change π.
    lm.generation_config = GenerationConfig(eos_token_id=sorted(ends), pad_token_id=min(ends))
    parts = [(problems + held_out)[i : i + 1000] for i in range(0, len(problems + held_out), 1000)]
    longest = max(encode(tokenizer, part, cfg.template).input_ids.shape[1] for part in parts)
    limit = getattr(lm.config.get_text_config(), "max_position_embeddings", None)
    if limit and longest + cfg.max_new_tokens > limit:
        parser.error(
            f"a prompt has {longest} of the model's {limit} tokens: lower --max-new-tokens, or use "
            "train.py"
        )

    # This file's log p must be those of the model's own forward pass. The first prompt tests it.
    ids = encode(tokenizer, problems[:1], cfg.template).input_ids  # [1, P]
    with torch.no_grad():
        own = lm(ids).logits[0, :-1].log_softmax(dim=-1).gather(1, ids[0, 1:, None]).squeeze(1)
        ours, _ = token_outputs(lm, ids, torch.arange(ids.shape[1])[None] > 0)
    if (ours - own).abs().mean() > 1e-4:  # more than rounding
        parser.error("the model's head has a scale or a cap, or another part: use train.py")
    lm.to("cuda" if torch.cuda.is_available() else "cpu")
    return lm, tokenizer, problems, held_out


def read(path: str) -> list[dict]:
    """The problems in a .jsonl file."""
    text = Path(path).read_text(encoding="utf-8")
    problems = [json.loads(line) for line in text.split("\n") if line.strip()]
    for i, x in enumerate(problems):
        if not isinstance(x.get("problem"), str) or x.get("answer") in (None, ""):
            parser.error(
                f"{path}, record {i + 1} has no problem or no answer; train.py reads other names"
            )
    return problems


def encode(tokenizer, problems: list[dict], template: str):
    """input_ids and attention_mask [B, P] of the prompts, padded on the left."""
    if template:
        prompts = [template.replace("{problem}", x["problem"]) for x in problems]
    else:
        chats = [[{"role": "user", "content": x["problem"] + BOXED}] for x in problems]
        prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    how = {"padding": True, "padding_side": "left", "return_token_type_ids": False}
    how["add_special_tokens"] = bool(template)  # a chat template has its own
    return tokenizer(prompts, return_tensors="pt", **how)


if __name__ == "__main__":
    main()
