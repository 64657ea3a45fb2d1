"""The toy over many seeds: README's three methods (`seeds`), and every row of the paper's tables (`methods`, RESULTS.md)."""
import contextlib, csv, io, json, os, subprocess, sys, tempfile, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np, torch
from matplotlib.figure import Figure
from tqdm import tqdm

import toy, train
from benchmarks.compare import half_width, mean_interval
from grpo import METHODS


def seeds(args) -> None:
    """Runs of `train.py` for each method and seed, two at a time, one thread each. Curves go to --csv; a run that it holds is not run again."""
    path, done = Path(args.csv), {}
    for row in csv.DictReader(open(path)) if path.exists() else ():
        numbers = {k: json.loads(v) for k, v in row.items() if v and k != "method"}
        done.setdefault((row["method"], numbers["seed"]), []).append(numbers)

    def run(job):
        method, seed = job
        folder = Path(args.output_dir) / f"{method}-{seed}"
        command = [sys.executable, "train.py", "--method", method, "--seed", str(seed), "--output-dir", str(folder)]
        process = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{process.stderr}")
        return [json.loads(line) for line in open(folder / "metrics.jsonl")]

    jobs = [(method, seed) for seed in range(args.seeds) for method in ("grpo", "dapo", "delta")]
    if missing := [job for job in jobs if job not in done]: toy.base_folder()  # built once, before the runs share it
    with ThreadPoolExecutor(2) as pool:
        done |= zip(missing, tqdm(pool.map(run, missing), total=len(missing), desc="runs"))
    columns = ["step", "reward", "entropy", "response_length", "lambda_std", "eval_accuracy"]
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "seed", *columns])
        writer.writerows([*job, *(round(row[k], 4) if k in row else "" for k in columns)] for job, rows in done.items() for row in rows)
    print(f"| method | held-out accuracy after | mean training reward over all {done[jobs[0]][-1]['step']} steps | seeds |\n|---|---|---|---|")
    for method in ("grpo", "dapo", "delta"):
        runs = [done[method, seed] for seed in range(args.seeds)]
        after = mean_interval([rows[-1]["eval_accuracy"] for rows in runs])
        reward = mean_interval([np.mean([row["reward"] for row in rows if "reward" in row]) for rows in runs])
        print(f"| {method} | {after} | {reward} | {len(runs)} |")
    before = mean_interval([done["delta", seed][0]["eval_accuracy"] for seed in range(args.seeds)])
    print(f"held-out accuracy before: {before} (one base model, {args.seeds} sampling seeds)")


# Rows of the paper's tables: name -> (flags, the paper's 8B average; Tables 1-3 and the analysis runs, different benchmark sets).
STUDY = {
    "dapo": ({"method": "dapo"}, "22.95"), "grpo": ({"method": "grpo"}, "-"), "reinforce": ({"method": "reinforce"}, "-"),
    "forking_tokens": ({"method": "forking_tokens"}, "24.80"), "sapo": ({"method": "sapo"}, "25.14"), "fipo": ({"method": "fipo"}, "23.89"),
    "delta": ({}, "28.40"), "oracle": ({"method": "oracle"}, "-"),
    "within_side": ({"delta_variant": "within_side"}, "17.94"), "fixed_gamma": ({"delta_variant": "fixed_gamma"}, "21.19"),
    "hard": ({"delta_variant": "hard"}, "20.93"), "no_norm": ({"delta_variant": "no_norm"}, "21.39"),
    "no_range_map": ({"delta_variant": "no_range_map"}, "20.78"), "K = 0": ({"K": 0}, "19.97"), "K = 2": ({"K": 2}, "22.15"),
    "K = 3": ({"K": 3}, "22.20"), "lam_min 0.5": ({"lam_min": 0.5}, "23.22"), "lam_max 1.5": ({"lam_max": 1.5}, "22.77"),
    "both": ({"lam_min": 0.5, "lam_max": 1.5}, "23.07"), "topk proxy": ({"proxy": "topk"}, "24.29"), "exact proxy": ({"proxy": "exact"}, "-"),
    "random": ({"delta_variant": "random"}, "18.34"), "select top": ({"select": "top"}, "-"), "select random": ({"select": "random"}, "-"),
    "select bottom": ({"select": "bottom"}, "-")}
RATES, PILOT_SEEDS, STUDY_SEEDS = (2.5e-5, 5e-5, 1e-4), 1, 8
TASK = ["--toy-k", "12", "--toy-noise", "0.06", "--max-prompt-tokens", "40", "--max-new-tokens", "112", "--prompts", "8", "--group-size", "8",
        "--mini-batch", "4", "--eval-every", "24", "--steps", "24", "--save-every", "24", "--eval-data", ""]  # long chains with rare errors tell methods apart


def study_run(job: tuple) -> dict:
    """One run of the study in this process: (row, learning rate, seed) -> a line of results/methods.csv; with a fourth entry, its curves."""
    def oracle(tokens, problems, **_):
        """ρ from what only the toy knows: 0.1, and 1.1 on the tokens that decided the reward."""
        ids = tokens.token.split(tokens.length.tolist())
        weights = 0.1 + torch.cat([toy.decisive(p["problem"], x) for p, x in zip(problems, ids)]).float()
        return weights / weights.mean()

    name, rate, seed, *curve = job
    torch.set_num_threads(1)
    METHODS["oracle"] = oracle
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        cfg = train.parse_config([*TASK, "--lr", str(rate), "--seed", str(seed), "--output-dir", folder])
        for key, value in STUDY[name][0].items():
            setattr(cfg, key, value)
        start = time.perf_counter()
        train.train(cfg)
        rows = [json.loads(line) for line in open(Path(folder) / "metrics.jsonl")]
    rewards = [row["reward"] for row in rows]
    if curve:
        return [{"row": name, "lr": rate, "seed": seed, "step": row["step"], **{k: round(row[k], 4) for k in CURVES}} for row in rows]
    return {"row": name, "lr": rate, "seed": seed, "reward": round(float(np.mean(rewards)), 5), "last_reward": round(float(np.mean(rewards[-8:])), 5),
            "seconds": round(time.perf_counter() - start, 1)}


def methods(args) -> None:
    """A pilot picks each row's learning rate by mean training reward; the other seeds then run at it. Finished runs are read, not rerun."""
    toy.base_model(k=12, noise=0.06)  # built once, before the runs share it
    path = Path(args.csv)
    path.parent.mkdir(exist_ok=True)
    done = {}
    if path.exists():
        done = {(r["row"], float(r["lr"]), int(r["seed"])): r for r in csv.DictReader(open(path))}

    def complete(jobs: list, label: str) -> None:
        missing = [job for job in jobs if job not in done]
        with ProcessPoolExecutor(2) as pool, open(path, "a", newline="") as file:
            for row in tqdm(pool.map(study_run, missing), total=len(missing), desc=label):
                writer = csv.DictWriter(file, list(row))
                if file.tell() == 0:
                    writer.writeheader()
                writer.writerow(row)
                file.flush()
                done[row["row"], row["lr"], row["seed"]] = row

    complete([(name, rate, seed) for seed in range(PILOT_SEEDS) for rate in RATES for name in STUDY], "pilot")
    mean = lambda name, rate, column: np.mean([float(done[name, rate, seed][column]) for seed in range(PILOT_SEEDS)])
    best = {name: max(RATES, key=lambda rate: mean(name, rate, "reward")) for name in STUDY}
    complete([(name, best[name], seed) for seed in range(PILOT_SEEDS, STUDY_SEEDS) for name in STUDY], "seeds")
    runs = {name: [done[name, best[name], seed] for seed in range(STUDY_SEEDS)] for name in STUDY}
    column = lambda name, key: np.array([float(r[key]) for r in runs[name]])
    print("| row | lr | mean training reward | minus dapo's | reward, last 8 steps | paper, 8B |\n|---|---|---|---|---|---|")
    for name in STUDY:
        print(f"| {name} | {best[name]:g} | {mean_interval(column(name, 'reward'))} | {mean_interval(column(name, 'reward') - column('dapo', 'reward'))} | "
              f"{mean_interval(column(name, 'last_reward'))} | {STUDY[name][1]} |")
    plot_methods({name: column(name, "reward") - column("dapo", "reward") for name in STUDY if name != "dapo"}, path.with_suffix(".png"))


CURVES = ("reward", "response_length", "entropy", "lambda_std")


def curves(args) -> list[dict]:
    """Step by step, dapo, delta and the oracle of `methods` over the same eight seeds, at the learning rates found there."""
    toy.base_folder(k=12, noise=0.06)
    best = {"dapo": 2.5e-5, "delta": 2.5e-5, "oracle": 5e-5}
    with ProcessPoolExecutor(2) as pool:
        runs = list(tqdm(pool.map(study_run, [(name, best[name], seed, True) for seed in range(STUDY_SEEDS) for name in best]), total=8 * len(best)))
    with open(args.csv, "w", newline="") as file:
        writer = csv.DictWriter(file, list(runs[0][0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for rows in runs for row in rows)
    for name in best:
        print(name, mean_interval([np.mean([row["reward"] for row in rows]) for rows in runs if rows[0]["row"] == name]))
    return [row for rows in runs for row in rows]


def plot_methods(differences: dict, path: Path) -> None:
    """Each row's mean training reward minus DAPO's on the same seeds, with its 95 % interval."""
    names = sorted(differences, key=lambda name: differences[name].mean())
    means = [differences[name].mean() for name in names]
    widths = [half_width(differences[name]) for name in names]
    figure = Figure(figsize=(7, 6.5), layout="constrained")
    axis = figure.subplots()
    axis.errorbar(means, names, xerr=widths, fmt="o", color="#0072B2", capsize=3)
    axis.axvline(0, color="#D55E00", label="DAPO")
    axis.set(title="Toy, 12 operations: every row against DAPO", xlabel="difference in mean training reward, same seeds (95 % interval)")
    axis.legend()
    figure.savefig(path, dpi=120)
