"""Problems: the toy's, a local file's or a hub data set's, as {"problem": str, "answer": str}; their prompts; their grades.

The table SOURCES names the paper's training set (Sec. 5), its benchmarks (Table 1) and its out-of-domain sets; any other set works with
--problem-column and --answer-column. Multiple-choice problems carry "choice": True and a letter as their answer.
"""
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import load_dataset
from datasets.exceptions import DatasetsError
from torch.nn.functional import pad

import toy
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
        raise UserError(f"{name} has no column {', '.join(sorted(missing))} (it has {', '.join(table.column_names)}): see --problem-column, --answer-column")
    if name == "mmlu_pro": table = table.select(random.Random(0).sample(range(len(table)), min(MMLU_PRO_SAMPLE, len(table))))
    rows = [multiple_choice(name, row, i) if name in ("gpqa_diamond", "mmlu_pro") else
            {"problem": text(row[problem_column]), "answer": text(row[answer_column])} for i, row in enumerate(table)]
    good = [row for row in rows if row["problem"] and row["answer"]]
    first = {row["problem"]: row for row in good[::-1]}
    problems = [row for row in good if first[row["problem"]] is row]
    if len(problems) < len(rows):
        print(f"{name}: {len(rows) - len(problems)} of {len(rows)} problems dropped: empty, without an answer, or repeated")
    if not problems: raise UserError(f"{name} holds no problem with an answer")
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


@dataclass
class Rollouts:
    """B responses, the G of a prompt next to each other; sequences start at column 0 and are padded on the right."""
    ids: torch.Tensor              # [B, T] prompt, response (its end token included), padding
    prompt_length: torch.Tensor    # [B] tokens
    response_length: torch.Tensor  # [B] tokens, the end token included
    truncated: torch.Tensor        # [B] bool: stopped by max_new_tokens, not by an end token
    texts: list[str]               # B decoded responses without special tokens

    def response_ids(self, i: int) -> torch.Tensor:
        """The tokens of response i, [response_length[i]]."""
        start = int(self.prompt_length[i])
        return self.ids[i, start:start + int(self.response_length[i])]

    def pick(self, index: list[int]) -> "Rollouts":
        """The responses `index`, in that order."""
        return Rollouts(self.ids[index], self.prompt_length[index], self.response_length[index], self.truncated[index],
                        [self.texts[i] for i in index])


def pack(prompts: list[list[int]], responses: list[list[int]], texts: list[str], ends: list[int], device) -> Rollouts:
    """Put prompts and responses side by side, from column 0 on; what is on the right of a response is never read."""
    prompt_length, response_length = (torch.tensor([len(x) for x in xs], device=device) for xs in (prompts, responses))
    ids = torch.full((len(prompts), int((prompt_length + response_length).max())), ends[0], device=device)
    for i, (prompt, response) in enumerate(zip(prompts, responses)):
        ids[i, :len(prompt) + len(response)] = torch.tensor(prompt + response, device=device)
    truncated = torch.tensor([response[-1] not in ends for response in responses], device=device)
    return Rollouts(ids, prompt_length, response_length, truncated, texts)


def join(parts: list[Rollouts]) -> Rollouts:
    """Several Rollouts as one, in order."""
    width = max(part.ids.shape[1] for part in parts)
    ids = torch.cat([pad(part.ids, (0, width - part.ids.shape[1])) for part in parts])
    lengths = [torch.cat([getattr(part, name) for part in parts]) for name in ("prompt_length", "response_length", "truncated")]
    return Rollouts(ids, *lengths, [text for part in parts for text in part.texts])


def packed_rows(index: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Where the tokens of responses `index` stand among all packed rows, in that order; `length` [B] response tokens."""
    start, size = (length.cumsum(0) - length)[index], length[index]
    first = (size.cumsum(0) - size).repeat_interleave(size)
    return start.repeat_interleave(size) + torch.arange(len(first), device=length.device) - first


def micro_batches(length: torch.Tensor, budget: int) -> list[torch.Tensor]:
    """Split B rows into groups that hold at most `budget` tokens after padding (a longer row stands alone).

    Rows are sorted by length, so little is padded. `length` [B]: tokens of prompt and response. Returns index tensors.
    """
    groups, current = [], []
    for i in length.argsort(descending=True, stable=True).tolist():
        if current and int(length[current[0]]) * (len(current) + 1) > budget:  # the first row of a group is its longest
            groups.append(torch.tensor(current, device=length.device))
            current = []
        current.append(i)
    return groups + ([torch.tensor(current, device=length.device)] if current else [])


def plan_micro_batches(length: torch.Tensor, advantages: torch.Tensor, mini_batch: int, budget: int, rank: int = 0, world: int = 1) -> list:
    """For each mini-batch of `mini_batch` responses this rank's micro-batches, as (response indices, whether these have an advantage).

    Scoring and update go through the same micro-batches, so the ratio of a step's first update is 1 to the last bit; those of
    zero-advantage responses are scored (their entropies count) but need no backward pass. Responses are dealt to the ranks by `length`
    [B], for equal work; every rank has as many micro-batches as the others, the last perhaps empty.
    """
    plan = []
    for part in torch.arange(len(advantages), device=advantages.device).split(mini_batch):
        plan.append([])
        for has_advantage in (True, False):
            some = part[(advantages[part] != 0) == has_advantage]
            some = some[length[some].argsort(descending=True, stable=True)]
            dealt = [micro_batches(length[some[r::world]], budget) for r in range(world)]
            mine = [some[rank::world][group] for group in dealt[rank]]
            plan[-1] += [(index, has_advantage) for index in mine + [some[:0]] * (max(map(len, dealt)) - len(mine))]
    return plan
