"""The true advantages of individual tokens on the toy, by branching (`truth`).

The state s_t before token t is the prompt and the tokens so far. Transitions are deterministic, so
Q(s_t, o_t) = V(s_{t+1}), and the token's advantage is Q - V = V(s_{t+1}) - V(s_t). V(s_t) is the
probability of a right answer, estimated from SAMPLES continuations that the model samples from s_t.
Continuation m from every prefix of a response uses the same uniform draw at the same position, so
neighbouring prefixes differ mainly in the effect of their token, not by chance.

If p(o_t) is nearly 1, there is nothing to measure: |Q - V| <= 1 - p, because Q and V differ only
if another token is drawn. Tokens with 1 - p below SURE get Q - V = 0 and the V of the next token
above SURE.

results/truth.csv has one line per token: its base, response and position, the token, whether
toy.decisive marks it, 1 - p, V before it, Q - V with its standard error, the response's reward.
Bases in the file are not measured again. The study takes half an hour on two cores.
"""

from pathlib import Path

import numpy as np
import torch

import toy
from grading import grade
from rollout import Job, Sampling, end_tokens, generate
from studies.credit import GradedBatch, batch
from studies.ranking import auc
from studies.running import fill
from studies.tables import print_table, read_csv

K = 12
NOISE = 0.06
BUILD_SEEDS = range(5)  # for the base models
PROMPTS = 8
GROUP = 8  # responses to each prompt
SAMPLES = 64  # continuations per prefix
SURE = 1e-3
LIMIT = 112  # tokens in a response, and in a continuation
COLUMNS = (
    *("base", "response", "position", "token", "decisive"),
    *("one_minus_p", "value", "advantage", "standard_error", "reward"),
)


def truth(args) -> list[dict]:
    """The true advantages of individual tokens, from continuations of each prefix (half an hour).

    Fills --csv and prints its agreement with `toy.decisive`.
    """
    path = Path(args.csv)
    measured = {line["base"] for line in read_truth(path)}
    fill(path, COLUMNS, lines_of_base, [x for x in BUILD_SEEDS if x not in measured], "bases")
    lines = read_truth(path)
    print_agreement(lines)
    return lines


def load(seed: int):
    """The model and tokenizer of the base built with this seed; built here if it is missing."""
    return toy.base_model(k=K, noise=NOISE, seed=seed)


def batch_of(lm, tokenizer, seed: int) -> GradedBatch:
    """The measured responses. seed: the base's seed, which also picks the problems."""
    return batch(lm, tokenizer, toy.problems(PROMPTS, seed=4000 + seed, k=K), GROUP, seed, LIMIT)


def lines_of_base(seed: int) -> list[dict]:
    """The lines for all responses to a base's problems."""
    torch.set_num_threads(1)  # a base built here depends on the number of threads
    lm, tokenizer = load(seed)
    graded = batch_of(lm, tokenizer, seed)
    lines = []
    for index in range(len(graded.rollouts)):
        lines += branched(lm, tokenizer, graded, seed, index)
    return lines


def branched(lm, tokenizer, graded: GradedBatch, seed: int, index: int) -> list[dict]:
    """The lines for one response in a base's batch."""
    first = int(graded.tokens.length[:index].sum())
    rows = slice(first, first + int(graded.tokens.length[index]))

    prompt = graded.rollouts[index].prompt
    response = graded.rollouts[index].tokens.tolist()
    problem = graded.tokens.problems[index]
    unsure = -torch.expm1(graded.tokens.logprob[rows])  # [T] 1 - p
    reward = float(graded.rewards[index])
    positions = [t for t, x in enumerate(unsure.tolist()) if x >= SURE]
    rewards = rewards_of_branches(lm, tokenizer, prompt, response, positions, problem, index)
    value, advantage, error = advantages_of(rewards, positions, len(response), reward)

    words = tokenizer.convert_ids_to_tokens(response)
    lines = []
    for t, word in enumerate(words):
        numbers = [unsure[t], value[t], advantage[t], error[t]]
        cells = [seed, index, t, word, int(graded.decisive[rows][t])]
        cells += [round(float(number), 4) for number in numbers]
        lines.append(dict(zip(COLUMNS, [*cells, reward], strict=True)))
    return lines


def rewards_of_branches(
    lm,
    tokenizer,
    prompt: list[int],
    response: list[int],
    positions: list[int],
    problem: dict,
    seed: int,
    samples: int = SAMPLES,
) -> np.ndarray:
    """The rewards for continuations from the prefix before each position: [positions, samples].

    In each sample, all positions share the uniform draw at each place. If a continuation
    reproduces the response up to a later position, both positions get the same reward.
    """
    if not positions:
        return np.zeros((0, samples))
    jobs = []
    for t in positions:
        jobs += [Job(prompt + response[:t], (seed, 0, 0, m), begin=t) for m in range(samples)]

    continued = generate(lm, jobs, end_tokens(lm, tokenizer), Sampling(LIMIT, in_flight=1024))
    whole = []
    for i, new in enumerate(continued):
        whole.append(response[: positions[i // samples]] + new.tokens.tolist())
    texts = tokenizer.batch_decode(whole, skip_special_tokens=True)
    grades = [grade(text, problem) for text in texts]
    return np.array(grades).reshape(len(positions), samples)


def advantages_of(
    rewards: np.ndarray, positions: list[int], length: int, reward: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """V before each token, Q - V of each token, and its standard error: [T] each.

    rewards: [positions, samples]. reward: the response's reward, which is V at its end.
    """
    samples = rewards.shape[1]
    ended = np.full((1, samples), reward)
    after = np.concatenate([rewards[1:], ended])  # [positions, samples]
    gained = after - rewards

    advantage = np.zeros(length)
    error = np.zeros(length)
    advantage[positions] = gained.mean(axis=1)
    error[positions] = gained.std(axis=1, ddof=1) / samples**0.5

    # A token that is nearly certain gets the value of the next token that is not.
    value = np.full(length, reward)
    start = 0
    for position, of_samples in zip(positions, rewards, strict=True):
        value[start : position + 1] = of_samples.mean()
        start = position + 1
    return value, advantage, error


def read_truth(path: Path = Path("results/truth.csv")) -> list[dict]:
    """The lines in the CSV, with cells parsed as numbers."""
    lines = read_csv(path, COLUMNS)
    for line in lines:
        for name, value in line.items():
            if name in ("base", "response", "position", "decisive"):
                line[name] = int(value)
            elif name != "token":
                line[name] = float(value)
    return lines


def print_agreement(lines: list[dict]) -> None:
    """Print how well `decisive` and |Q - V| agree on each base's right and wrong responses.

    Also prints the number of clear tokens, with |Q - V| beyond two standard errors, and how many of
    them have a Q - V above 0. In a wrong response these are right steps.
    """
    table = []
    for base in sorted({line["base"] for line in lines}):
        for reward, name in ((1.0, "right"), (0.0, "wrong")):
            some = [x for x in lines if (x["base"], x["reward"]) == (base, reward)]
            size = torch.tensor([abs(x["advantage"]) for x in some])
            marked = torch.tensor([bool(x["decisive"]) for x in some])
            share = float(size[marked].sum() / size.sum())
            clear = [x for x in some if abs(x["advantage"]) > 2 * x["standard_error"]]
            above = sum(x["advantage"] > 0 for x in clear)
            cells = [base, name, len(some), f"{auc(size, marked):.3f}", f"{share:.2f}"]
            table.append([*cells, len(clear), above])
    header = ["base", "responses", "tokens", "AUC of |Q - V| for labels"]
    print_table([*header, "labelled share of Σ|Q - V|", "clear", "of these above 0"], table)
