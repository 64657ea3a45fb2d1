"""Credit that trains: runs of the toy that differ only in c_t, for notebook 6.

    $ python notebooks/credit_duel.py  # ten CPU minutes; writes data/credit_duel.json

A step samples 8 responses to each of 16 problems, and raises the mean of c_t log p of their tokens
with Adam. The four c_t are the functions in CREDIT. Each is trained at its own best learning rate,
which was chosen on other seeds. For a comparison at equal numbers of sampled tokens the group mean
is also trained for LONG steps, at the rate that was best for that many.

Shapes: B responses of T tokens each, N tokens of all responses without padding, H hidden size.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import minimal
import toy

FILE = Path(__file__).parent / "data" / "credit_duel.json"
PROMPTS, GROUP, STEPS, LONG = 16, 8, 10, 40
RATES = {STEPS: (5e-4, 1e-3, 2e-3), LONG: (2.5e-4, 5e-4, 1e-3)}
TUNING, SEEDS = range(100, 102), range(20, 24)
M = 4  # continuations of a prefix
LAMBDA = 0.95  # GAE's


# ---- four c_t: each takes a step, and returns c [N] and how many tokens it sampled --------------


def group_mean(step):
    """R minus the mean reward of the response's group."""
    groups = step.rewards.view(-1, GROUP)
    above = (groups - groups.mean(dim=1, keepdim=True)).flatten()
    return above.repeat_interleave(step.length), 0


def generalised(step):
    """GAE of a critic that is linear in the policy's h. It is fitted to the batch afterwards."""
    with torch.no_grad():
        _, h = minimal.token_outputs(step.lm, step.rollouts.ids, step.rollouts.is_token)
        V = values_of(step.critic, h).split(step.length.tolist())
    c = [gae(torch.cat([v, R[None]]), LAMBDA) for v, R in zip(V, step.rewards, strict=True)]
    fit(step, h)
    return torch.cat(c), 0


def branching(step):
    """Q - V of each result, the digit after a `=`, from M continuations; 0 for other tokens."""
    asked, places = {}, []  # a prefix -> its problem, to be continued; the results of a response
    for problem, words in zip(step.problems, step.words, strict=True):
        places.append([t for t in range(1, len(words)) if words[t - 1] == "="])
        for t in places[-1]:
            text = problem["problem"] + "".join(words[:t])
            asked[text] = problem | {"problem": text}
    V, sampled = {}, 0
    cfg = minimal.Settings(group_size=M, seed=step.seed + 77)
    for first in range(0, len(asked), 64):
        part = list(asked.values())[first : first + 64]
        part = minimal.with_prompts(part, step.tokenizer, cfg)
        ends = minimal.sample(
            step.lm, step.tokenizer, part, range(len(part)), cfg, 1000 * step.number + first
        )
        sampled += int(ends.is_token.sum())
        means = ends.rewards.view(-1, M).mean(dim=1).tolist()
        V |= zip([problem["problem"] for problem in part], means, strict=True)
    c = []
    for problem, words, at, R in zip(
        step.problems, step.words, places, step.rewards.tolist(), strict=True
    ):
        before = [V[problem["problem"] + "".join(words[:t])] for t in at]
        c.append(torch.zeros(len(words)))
        c[-1][at] = torch.tensor([*before, R]).diff()
    return torch.cat(c), sampled


def oracle(step):
    """The group mean's c, 1.1 times at the tokens that decided the reward, else 0.1 times."""
    responses = [toy.TOKEN_ID[word] for words in step.words for word in words]
    parts = torch.tensor(responses).split(step.length.tolist())
    decided = [
        toy.decisive(problem["problem"], ids)
        for problem, ids in zip(step.problems, parts, strict=True)
    ]
    return group_mean(step)[0] * torch.where(torch.cat(decided), 1.1, 0.1), 0


CREDIT = {"group mean": group_mean, "GAE": generalised, "Q - V": branching, "oracle": oracle}


# ---- the critic ------------------------------------------------------------------------------


def gae(values, lam):
    """The sum of λ^(k - t) δ_k over k >= t: values [T + 1], λ -> [T]."""
    found, after = [], 0.0
    for delta in reversed(values.diff().tolist()):
        after = delta + lam * after
        found.append(after)
    return torch.tensor(found[::-1])


def monte_carlo(values, length, rewards):
    """The mean square of V̂ - R over all tokens: values [N], length [B], rewards [B]."""
    return (values - rewards.repeat_interleave(length)).square().mean()


def bootstrapped(values, length, rewards):
    """The mean square of V̂ - V̂ of the next state, which is R after a response's last token."""
    following = values.detach().roll(-1)
    following[length.cumsum(dim=0) - 1] = rewards
    return (values - following).square().mean()


def new_critic(hidden_size=64):
    """A linear value head that says 0 everywhere, and its optimizer."""
    head = torch.nn.Linear(hidden_size, 1)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    return head, torch.optim.Adam(head.parameters(), lr=0.01)


def values_of(critic, h):
    """V̂ [N] of the states h [N, H]."""
    return critic[0](h).squeeze(1)


def fit(step, h, updates=100):
    """Improve the critic on a batch. h [N, H] has no gradient: the policy's body stays as it is."""
    head, optimizer = step.critic
    for _ in range(updates):
        loss = step.value_loss(values_of(step.critic, h), step.length, step.rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# ---- a run -------------------------------------------------------------------------------------


def train(name, rate, seed, steps=STEPS, value_loss=monte_carlo):
    """{"rewards": of each step, "tokens": sampled until then, continuations included}."""
    lm, tokenizer = toy.base_model("learn")
    optimizer = torch.optim.Adam(lm.parameters(), lr=rate)
    cfg = minimal.Settings(group_size=GROUP, seed=seed)
    problems = toy.problems(PROMPTS * (LONG + 1), seed=1000 + seed)
    problems = minimal.with_prompts(problems, tokenizer, cfg)
    critic, tokens, found = new_critic(), 0, {"rewards": [], "tokens": []}
    for number in range(-(name == "GAE"), steps):  # -1: a batch for the critic alone
        chosen = range(PROMPTS * (number % (LONG + 1)), PROMPTS * (number % (LONG + 1) + 1))
        rollouts = minimal.sample(lm, tokenizer, problems, chosen, cfg, number % (LONG + 1))
        length = rollouts.is_token.sum(dim=1)
        parts = rollouts.ids[rollouts.is_token].split(length.tolist())
        step = SimpleNamespace(
            lm=lm,
            tokenizer=tokenizer,
            number=number,
            seed=seed,
            rollouts=rollouts,
            rewards=rollouts.rewards,
            length=length,
            problems=[problems[i] for i in chosen for _ in range(GROUP)],
            words=[[toy.VOCABULARY[token] for token in part.tolist()] for part in parts],
            critic=critic,
            value_loss=value_loss,
        )
        c, more = CREDIT[name](step)
        tokens += len(c) + more
        if number < 0:
            continue
        logprob, _ = minimal.token_outputs(lm, rollouts.ids, rollouts.is_token)
        (-(c * logprob).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        found["rewards"].append(round(float(rollouts.rewards.mean()), 4))
        found["tokens"].append(tokens)
    return found


def key(name, rate, seed, steps):
    """The name of a run in FILE."""
    return f"{name}, rate {rate:g}, seed {seed}, steps {steps}"


def reached(run, steps):
    """The mean reward of a run; of a long one, that of its last five steps."""
    rewards = run["rewards"][-5:] if steps == LONG else run["rewards"]
    return sum(rewards) / len(rewards)


def best_rate(runs, name, steps=STEPS):
    """The rate with the highest reward on TUNING."""
    return max(
        RATES[steps],
        key=lambda r: sum(reached(runs[key(name, r, seed, steps)], steps) for seed in TUNING),
    )


def stored(name, steps=STEPS):
    """The best rate, and FILE's runs at it, one for each of SEEDS."""
    runs = json.loads(FILE.read_text())
    rate = best_rate(runs, name, steps)
    return rate, [runs[key(name, rate, seed, steps)] for seed in SEEDS]


def main():
    """Train what FILE does not have yet: every c_t on TUNING at each rate, at the best on SEEDS."""
    runs = json.loads(FILE.read_text()) if FILE.exists() else {}

    def add(name, rate, seed, steps):
        run = key(name, rate, seed, steps)
        if run not in runs:
            runs[run] = train(name, rate, seed, steps)
            lines = [f"{json.dumps(one)}: {json.dumps(runs[one])}" for one in runs]
            FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return round(reached(runs[run], steps), 3)

    for name, steps in [*((name, STEPS) for name in CREDIT), ("group mean", LONG)]:
        for rate in RATES[steps]:
            for seed in TUNING:
                add(name, rate, seed, steps)
        best = best_rate(runs, name, steps)
        found = [add(name, best, seed, steps) for seed in SEEDS]
        print(f"{name}, {steps} steps: best rate {best:g}, on each seed {found}", flush=True)


if __name__ == "__main__":
    main()
