"""The paper's evaluation protocol (App. I, App. K): n samples a problem, avg@n and pass@n, and whether one model beats another.

    torchrun evaluate.py --model DIR --benchmarks aime24,aime25 --samples 16     sample, grade, save
    python evaluate.py --model DIR --benchmarks aime24,aime25 --regrade          grade the saved responses again
    python evaluate.py compare A B                                               A, B: two output folders; is A better?

Every response is appended to <output-dir>/<benchmark>/responses-<rank>.jsonl as it comes, so an interrupted run continues; ranks share the
problems, and a response depends on (seed, problem, sample) alone. scores.json holds what `compare` reads (benchmarks/compare.py).
What a run of train.py writes is written here too: metrics, samples, the exported model.
"""
import json, math, os, shutil, sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np, torch, torch.distributed as dist
from transformers import HfArgumentParser

from data import Rollouts, UserError, draw, encode_prompts, grade, join, load_problems, packed_rows
from policy import Policy, load_model, start_ranks
from rollout import rollout

PAPER = "aime24,aime25,aime26,hmmt25_feb,hmmt25_nov,hmmt26_feb,brumo25"  # Table 1


def sample_scores(lm, tokenizer, problems: list[dict], prompts: list[list[int]], samples: int, max_new_tokens: int, temperature: float,
                  top_p: float, seed: int, rows: int) -> np.ndarray:
    """Grades [P, samples] of freshly sampled responses; train.py's evaluation. Random numbers are those of step 0, every time."""
    out = rollout(lm, tokenizer, prompts, range(len(problems)), samples, max_new_tokens, temperature, top_p, seed, step=0, rows=rows)
    return np.array([grade(text, problems[i // samples]) for i, text in enumerate(out.texts)]).reshape(len(problems), samples)


def collect(lm, tokenizer, problems: list[dict], prompts: list[list[int]], cfg, state: dict, step: int,
            stop=lambda: False) -> tuple:
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
                             seed=cfg.seed, step=step, rows=cfg.rollout_rows, stop=stop))
        batch += [problems[i] for i in chosen for _ in range(G)]
        # verify: R_i = 1 if the final answer is right, else 0
        rewards += [grade(text, p) for text, p in zip(parts[-1].texts, batch[len(rewards):])]
        mixed = [len(set(rewards[i:i + G])) > 1 for i in range(0, len(rewards), G)]
        if sum(mixed) >= cfg.prompts: break
    groups = sorted(range(len(mixed)), key=lambda g: cfg.dynamic_sampling and not mixed[g])[:cfg.prompts]  # a stable sort
    index = [g * G + i for g in groups for i in range(G)]
    return join(parts).pick(index), [batch[i] for i in index], torch.tensor([rewards[i] for i in index], device=parts[0].ids.device)


def summary(scores: np.ndarray) -> dict:
    """avg@n, pass@n (any sample right), the standard error of avg@n over problems, and the n repetitions, from grades [P, n]."""
    by_problem = scores.mean(axis=1)
    error = by_problem.std(ddof=1) / math.sqrt(len(by_problem)) if len(by_problem) > 1 else float("nan")
    return {"problems": len(scores), "avg": float(by_problem.mean()), "pass": float(scores.max(axis=1).mean()), "stderr": float(error),
            "repetitions": scores.mean(axis=0).tolist(), "by_problem": by_problem.tolist()}


def weighted_average(values: list, problems: list[int]):
    """The paper's average over benchmarks, weighted by their question counts (Table 1)."""
    return sum(v * n for v, n in zip(values, problems)) / sum(problems)


def flag(default, help, **more):
    """A field of a Config that is also a command-line flag; train.py's are made the same way."""
    return field(default=default, metadata={"help": help, **more})


@dataclass
class Common:
    """What train.py and evaluate.py both take."""
    model: str = flag("", "Hugging Face folder or hub id")
    problem_column: str = flag("problem", "column of the problem, for sets data.py does not know")
    answer_column: str = flag("answer", "column of the answer")
    prompt_template: str = flag("", "prompt with {problem} in it; default: chat template with the instruction")
    temperature: float = flag(1.0, "of sampling, and in training of log-probabilities")
    max_prompt_tokens: int = flag(2048, "longer prompts are dropped, tokens")
    rollout_rows: int = flag(256, "responses a process samples at a time at most; fewer where memory is short (ours; memory only)")
    seed: int = flag(0, "of sampling and data order")
    output_dir: str = flag("", "default runs/<model>-<method>-<seed>; evaluate.py: <model>/evaluation")


@dataclass
class Config(Common):
    """Defaults are the paper's (App. I)."""
    benchmarks: str = flag(PAPER, "comma-separated: names known to data.py, local files or hub ids")
    samples: int = flag(16, "responses a problem, the n of avg@n")
    max_new_tokens: int = flag(30000, "longest response, tokens")
    top_p: float = flag(0.7, "nucleus sampling")
    regrade: bool = flag(False, "grade the saved responses again; samples nothing")


LIMITS = [  # flags of train.py and evaluate.py, lowest and highest value
    ("steps prompts mini_batch max_new_tokens max_prompt_tokens micro_batch_tokens rollout_rows samples eval_every eval_samples save_every "
     "proxy_topk toy_k world_size", 1, 2**62), ("group_size", 2, 2**62), ("lr temperature max_grad_norm gpu_gb", 1e-12, 1e99),
    ("K lam_min lam_max weight_decay clip_high overlong_buffer proxy_budget_gb toy_filler seed", 0, 1e99),
    ("clip_low toy_noise", 0, 1), ("top_p eval_top_p select_share", 1e-12, 1)]


def check_limits(cfg) -> None:
    """Raise UserError for a flag outside its LIMITS."""
    for names, low, high in LIMITS:
        for name in (name for name in names.split() if not low <= getattr(cfg, name, low) <= high):
            raise UserError(f"--{name.replace('_', '-')} is {getattr(cfg, name)}: it must be at least {low}" + f" and at most {high}" * (high == 1))


def saved_responses(folder: Path) -> dict[tuple[int, int], str]:
    """(problem, sample) -> response, from the files of all ranks of all runs; a line cut off by a kill is left out."""
    lines = [line for path in sorted(folder.glob("responses-*.jsonl")) for line in path.read_text().splitlines(keepends=True)]
    return {(row["problem"], row["sample"]): row["response"] for row in map(json.loads, (x for x in lines if x.endswith("\n")))}


def sample_benchmark(lm, tokenizer, problems: list[dict], cfg: Config, folder: Path, rank: int, world: int) -> None:
    """Append this rank's missing responses to its file, a few problems at a time."""
    kept, prompts = encode_prompts(problems, tokenizer, cfg.max_prompt_tokens, cfg.prompt_template)
    if len(kept) < len(problems): raise UserError(f"{folder.name}: raise --max-prompt-tokens, a benchmark is evaluated whole")
    folder.mkdir(parents=True, exist_ok=True)
    done = saved_responses(folder)
    mine = [i for i in range(rank, len(problems), world) if any((i, s) not in done for s in range(cfg.samples))]
    path, at_once = folder / f"responses-{rank}.jsonl", max(1, cfg.rollout_rows // cfg.samples)
    if path.exists() and not path.read_text().endswith("\n"):
        path.write_text(path.read_text().rpartition("\n")[0] + "\n" if "\n" in path.read_text() else "")  # half a line after a kill
    for start in range(0, len(mine), at_once):
        chosen = mine[start:start + at_once]
        out = rollout(lm, tokenizer, [prompts[i] for i in chosen], chosen, cfg.samples, cfg.max_new_tokens, cfg.temperature, cfg.top_p, cfg.seed,
                      step=0, rows=cfg.rollout_rows)
        with open(path, "a") as file:
            for j, text in enumerate(out.texts):
                file.write(json.dumps({"problem": chosen[j // cfg.samples], "sample": j % cfg.samples, "response": text,
                                       "tokens": int(out.response_length[j]), "truncated": bool(out.truncated[j])}) + "\n")
        print(f"{folder.name}: rank {rank} has {start + len(chosen)} of its {len(mine)} problems", flush=True)


def run(cfg: Config) -> dict:
    """Sample (unless --regrade), grade and summarise; rank 0 writes scores.json and prints the table."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if not cfg.model and not cfg.output_dir: raise UserError("--model DIR is needed (or --output-dir with --regrade)")
    check_limits(cfg)
    folder = Path(cfg.output_dir or (Path(cfg.model) / "evaluation" if Path(cfg.model).is_dir() else Path("evaluation") / Path(cfg.model).name))
    sets = {name: load_problems(name, cfg.problem_column, cfg.answer_column) for name in cfg.benchmarks.split(",") if name}
    if not cfg.regrade:
        lm, tokenizer = load_model(cfg.model, torch.bfloat16 if torch.cuda.is_available() else torch.float32)
        for name, problems in sets.items(): sample_benchmark(lm, tokenizer, problems, cfg, folder / Path(name).stem, rank, world)
    if world > 1:
        start_ranks()
        dist.barrier()  # every rank's responses are on disk
        dist.destroy_process_group()
    if rank: return {}
    results = {}
    for name, problems in sets.items():
        saved = saved_responses(folder / Path(name).stem)
        if missing := [i for i in range(len(problems)) if any((i, s) not in saved for s in range(cfg.samples))]:
            raise UserError(f"{folder / Path(name).stem} lacks responses to {len(missing)} of {len(problems)} problems: run without --regrade")
        results[Path(name).stem] = summary(np.array([[grade(saved[i, s], p) for s in range(cfg.samples)] for i, p in enumerate(problems)]))
    average = weighted_average([r["avg"] for r in results.values()], [r["problems"] for r in results.values()])
    scores = {"model": cfg.model, "samples": cfg.samples, "average": average, "benchmarks": results}
    write_aside(folder / "scores.json", json.dumps(scores, indent=1) + "\n")
    print(f"| benchmark | problems | avg@{cfg.samples} | pass@{cfg.samples} | standard error |\n|---|---|---|---|---|")
    for name, r in results.items(): print(f"| {name} | {r['problems']} | {r['avg']:.2%} | {r['pass']:.2%} | {r['stderr']:.2%} |")
    print(f"question-weighted average: {average:.2%} ({folder / 'scores.json'})")
    return scores


# ---- what a run of train.py writes -----------------------------------------------------------------------------------


def write_aside(path: Path, text: str) -> None:
    """Write to a temporary name, then rename: whoever reads `path` finds the old content or the new, never half of it."""
    (aside := path.with_name(path.name + ".tmp")).write_text(text)
    os.replace(aside, path)


def log(folder: Path, metrics: dict) -> None:
    """Append one line to metrics.jsonl and print the gist of it; the first rank's job."""
    if dist.is_initialized() and dist.get_rank(): return
    with open(folder / "metrics.jsonl", "a") as file: file.write(json.dumps(metrics) + "\n")
    shown = [k for k in "reward response_length entropy grad_norm clip_fraction lambda_std seconds eval_accuracy".split() if k in metrics]
    print(f"step {metrics['step']:4d}  " + "  ".join(f"{k} {metrics[k]:.3g}" for k in shown), flush=True)


def save_samples(folder: Path, step: int, batch, rollouts: Rollouts, rewards, weights, tokenizer, count: int = 4) -> None:
    """Append `count` responses, spread over the batch, with their tokens' λ (or the method's weights) to samples.jsonl."""
    if dist.get_rank(): return
    with open(folder / "samples.jsonl", "a") as file:
        for i in range(0, len(batch), max(1, len(batch) // count)):
            rows = packed_rows(torch.tensor([i]), rollouts.response_length)
            words = [tokenizer.decode([token]) for token in rollouts.response_ids(i).tolist()]
            file.write(json.dumps({"step": step, **batch[i], "reward": float(rewards[i]), "response": rollouts.texts[i],
                                   "tokens": words, "lambda": [round(w, 4) for w in weights[rows].tolist()]}) + "\n")


def export(folder: Path, policy: Policy, tokenizer) -> None:
    """A Hugging Face folder in the dtype of the computation, bfloat16 on GPUs; written aside and renamed. All ranks call it."""
    aside = folder.with_name(folder.name + ".tmp")
    with policy.plain() as lm:
        if dist.get_rank(): return
        lm.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
    if folder.exists(): shutil.rmtree(folder)
    os.rename(aside, folder)


def report(folder: Path) -> None:
    """Draw the curves and say where all is."""
    rows = [json.loads(line) for line in open(folder / "metrics.jsonl")]
    from benchmarks.curves import plot_curves
    plot_curves(rows, folder / "curves.png")
    accuracy = [row["eval_accuracy"] for row in rows if "eval_accuracy" in row]
    print(f"done: {rows[-1]['step']} steps in {sum(row.get('seconds', 0) for row in rows):.0f} s, " +
          (f"accuracy {accuracy[0]:.3f} before and {accuracy[-1]:.3f} after, " if accuracy else "") +
          f"model/, curves.png, metrics.jsonl and samples.jsonl in {folder}")


class Parser(HfArgumentParser):
    def error(self, message):  # argparse would print the whole usage
        raise UserError(f"{message} (python {self.prog} --help lists the flags)")


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["compare"]:
            from benchmarks.compare import compare
            return compare(*argv[1:])
        run(Config(**vars(Parser(Config, prog="evaluate.py", allow_abbrev=False, description=__doc__.splitlines()[0]).parse_args(argv))))
    except UserError as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__": main()
