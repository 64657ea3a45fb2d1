"""Problems: the toy's, a local file's or a hub data set's, as {"problem": str, "answer": str}; their prompts; their grades.

The table SOURCES names the paper's training set (Sec. 5), its benchmarks (Table 1) and its out-of-domain sets; any other set works with
--problem-column and --answer-column. Multiple-choice problems carry "choice": True and a letter as their answer.
"""
import random
from pathlib import Path

import torch
from datasets import load_dataset
from datasets.exceptions import DatasetsError

import toy
from rollout import join, rollout
from verify import choice, reward

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
SOURCES = {  # name: (hub id, load_dataset's other arguments, problem column, answer column)
    "deepmath": ("zwhe99/DeepMath-103K", {"split": "train", "columns": ["question", "final_answer"]}, "question", "final_answer"),
    "aime24": ("HuggingFaceH4/aime_2024", {"split": "train"}, "problem", "answer"),
    **{name: (f"MathArena/{hub}", {"split": "train"}, "problem", "answer") for name, hub in [
        ("aime25", "aime_2025"), ("aime26", "aime_2026"), ("hmmt25_feb", "hmmt_feb_2025"), ("hmmt25_nov", "hmmt_nov_2025"),
        ("hmmt26_feb", "hmmt_feb_2026"), ("brumo25", "brumo_2025")]},
    "gpqa_diamond": ("Idavidrein/gpqa", {"name": "gpqa_diamond", "split": "train"}, "Question", "Correct Answer"),
    "mmlu_pro": ("TIGER-Lab/MMLU-Pro", {"split": "test"}, "question", "answer"),
}
MMLU_PRO_SAMPLE = 600  # of its 12,032 problems, as in the paper


class UserError(ValueError):
    """A user's mistake, in one line that says what is wrong, where, and what to do; programs exit with code 2 on it."""


def load_problems(name: str, problem_column: str = "problem", answer_column: str = "answer", toy_k: int = 5, seed: int = 0) -> list[dict]:
    """Problems of `toy`, `toy-held-out`, a name in SOURCES, a local .jsonl, .parquet or .csv file, or a hub id.

    Empty and repeated problems are dropped and counted in a printed line. Raises UserError for a set that is not there or cannot be
    read, a missing column, or no problem left.
    """
    if name in ("toy", "toy-held-out"):  # the held-out problems are the same for every seed
        return toy.problems(8192, seed=2 * seed, k=toy_k) if name == "toy" else toy.problems(512, seed=1, k=toy_k)
    hub, options, problem_column, answer_column = SOURCES.get(name, (name, {"split": "train"}, problem_column, answer_column))
    kind = {".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}.get(Path(name).suffix)
    try:
        table = load_dataset(kind, data_files=name, split="train") if kind else load_dataset(hub, **options)
    except (OSError, ValueError, DatasetsError) as error:  # not there, no network, gated, unknown split, not a table
        raise UserError(f"cannot load {name} ({type(error).__name__}: {str(error).splitlines()[0]}): pass one of {', '.join(SOURCES)}, "
                        "a local .jsonl, .parquet or .csv file, or a hub id you can reach") from error
    if missing := {problem_column, answer_column} - set(table.column_names):
        raise UserError(f"{name} has no column {', '.join(sorted(missing))} (it has {', '.join(table.column_names)}): "
                        "name them with --problem-column and --answer-column")
    if name == "mmlu_pro":
        table = table.select(random.Random(0).sample(range(len(table)), min(MMLU_PRO_SAMPLE, len(table))))
    rows = [multiple_choice(name, row, i) if name in ("gpqa_diamond", "mmlu_pro") else
            {"problem": text(row[problem_column]), "answer": text(row[answer_column])} for i, row in enumerate(table)]
    kept = {}
    for row in (row for row in rows if row["problem"] and row["answer"]):
        kept.setdefault(row["problem"], row)  # of repeated problems the first
    problems = list(kept.values())
    if len(problems) < len(rows):
        print(f"{name}: {len(rows) - len(problems)} of {len(rows)} problems dropped: empty, without an answer, or repeated")
    if not problems:
        raise UserError(f"{name} holds no problem with an answer")
    return problems


def text(value) -> str:
    """A cell as text: an integer answer read as a float (a column with gaps) is an integer again."""
    return "" if value is None else str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def multiple_choice(name: str, row: dict, index: int) -> dict:
    """GPQA's four answers in an order fixed by the row, MMLU-Pro's options as they stand; the answer is a letter."""
    if name == "mmlu_pro":
        problem, options, right = row["question"], row["options"], row["answer"]
    else:
        problem, options = row["Question"], [row["Correct Answer"], *(row[f"Incorrect Answer {i}"] for i in (1, 2, 3))]
        random.Random(index).shuffle(options)
        right = "ABCD"[options.index(row["Correct Answer"])]
    listed = "\n".join(f"({letter}) {text(option)}" for letter, option in zip("ABCDEFGHIJ", options))
    return {"problem": f"{text(problem)}\n{listed}\nAnswer with the letter.", "answer": right, "choice": True}


def grade(response: str, problem: dict) -> float:
    """1.0 if the response answers the problem, else 0.0."""
    return float(choice(response) == problem["answer"]) if problem.get("choice") else reward(response, problem["answer"])


def encode_prompts(problems: list[dict], tokenizer, limit: int, template: str = "") -> tuple[list[dict], list[list[int]]]:
    """(problems, prompts): token ids of each problem's prompt, without the problems whose prompt exceeds `limit` tokens.

    A prompt is `template` with {problem} filled in, else the tokenizer's chat template with INSTRUCTION, else the problem itself. What
    is dropped is counted in a printed line. Raises UserError if nothing is left, or the template has no {problem}.
    """
    if template and "{problem}" not in template:
        raise UserError(f"--prompt-template {template!r} has no {{problem}} in it: write where the problem goes")
    if template or not tokenizer.chat_template:
        prompts = [tokenizer(template.replace("{problem}", p["problem"]) if template else p["problem"]).input_ids for p in problems]
    else:
        chats = [[{"role": "user", "content": f"{p['problem']}\n{INSTRUCTION}"}] for p in problems]
        prompts = [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=True)["input_ids"] for c in chats]
    kept = [(p, prompt) for p, prompt in zip(problems, prompts) if 0 < len(prompt) <= limit]
    if len(kept) < len(problems):
        print(f"{len(problems) - len(kept)} of {len(problems)} problems dropped: their prompts exceed --max-prompt-tokens {limit}")
    if problems and not kept:
        raise UserError(f"every prompt exceeds --max-prompt-tokens {limit} (the shortest has {min(map(len, prompts))} tokens): raise it")
    return [p for p, _ in kept], [prompt for _, prompt in kept]


def draw(size: int, position: int, count: int, seed: int) -> list[int]:
    """Indices of problems position .. position + count - 1 of an endless stream of epochs, each shuffled by (seed, epoch)."""
    orders = {epoch: torch.randperm(size, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch)).tolist()
              for epoch in range(position // size, (position + count) // size + 1)}
    return [orders[i // size][i % size] for i in range(position, position + count)]


def collect(lm, tokenizer, problems: list[dict], prompts: list[list[int]], cfg, state: dict, step: int) -> tuple:
    """Sample and verify a batch: (rollouts, their problems, rewards [B] in {0, 1}). Advances the data position.

    With dynamic sampling, groups of equal rewards make room for further prompts, in up to 10 rounds; what then still lacks is filled
    up with such groups.
    """
    parts, batch, rewards, G = [], [], [], cfg.group_size
    for _ in range(10 if cfg.dynamic_sampling else 1):
        chosen = draw(len(problems), state["position"], cfg.prompts, cfg.seed)
        state["position"] += cfg.prompts
        # sample: G responses per prompt from θ_old
        parts.append(rollout(lm, tokenizer, [prompts[i] for i in chosen], chosen, G, cfg.max_new_tokens, cfg.temperature,
                             seed=cfg.seed, step=step, rows=cfg.rollout_rows))
        batch += [problems[i] for i in chosen for _ in range(G)]
        # verify: R_i = 1 if the final answer is right, else 0
        rewards += [grade(text, p) for text, p in zip(parts[-1].texts, batch[len(rewards):])]
        mixed = [len(set(rewards[i:i + G])) > 1 for i in range(0, len(rewards), G)]
        if sum(mixed) >= cfg.prompts:
            break
    groups = sorted(range(len(mixed)), key=lambda g: cfg.dynamic_sampling and not mixed[g])[:cfg.prompts]  # a stable sort
    index = [g * G + i for g in groups for i in range(G)]
    return join(parts).pick(index), [batch[i] for i in index], torch.tensor([rewards[i] for i in index], device=parts[0].ids.device)
