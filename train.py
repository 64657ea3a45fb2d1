"""RLVR on one page: sample, verify, advantages, coefficients, update, log, save.

`python train.py` trains the embedded toy with DelTA on a laptop; `python train.py --model ID` any Hugging Face causal LM, with
the paper's settings (App. I) as defaults. Writes config.json, metrics.jsonl, samples.jsonl, curves.png, checkpoint.pt, model/
and best/ to --output-dir, and continues an interrupted run from its last checkpoint.

Departures from the paper: (1) dual clip for negative advantages, weight decay 0.1 and gradient clip 1.0 as in the released
code; (2) a mini-batch in which no response has an advantage makes no optimiser step; (3) one epoch per rollout batch.
"""
import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers.utils import logging as hf_logging

import delta  # noqa: F401  registers --method delta
import toy
from data import SOURCES, UserError, collect, encode_prompts, load_problems
from evaluate import Parser, flag, sample_scores
from grpo import EVERY_UPDATE, METHODS, SURROGATES, TokenBatch, clipped_surrogate, clipped_tokens, group_advantages
from policy import Policy, load_model, packed_rows, plan_micro_batches, score
from rollout import Rollouts
from verify import overlong_penalty


@dataclass
class Config:
    """Every knob of a run. Defaults are the paper's (App. I) unless the help says otherwise; TOY replaces some."""
    model: str = flag("toy", "`toy`, a local Hugging Face folder or a hub id")
    method: str = flag("delta", "token weights of the update (App. E)", choices=sorted(METHODS))
    data: str = flag("deepmath", f"training problems: toy, a .jsonl, .parquet or .csv file, {', '.join(SOURCES)}, or a hub id")
    eval_data: str = flag("aime25", "evaluation problems, as --data; the best checkpoint is kept by them; empty: none")
    problem_column: str = flag("problem", "column of the problem, for sets data.py does not know")
    answer_column: str = flag("answer", "column of the answer")
    prompt_template: str = flag("", "prompt with {problem} in it; default: chat template with the instruction")
    steps: int = flag(220, "rollout batches (the paper's 8B: 220, 14B: 300)")
    prompts: int = flag(128, "prompts per step")
    group_size: int = flag(16, "responses per prompt, G")
    mini_batch: int = flag(32, "prompts per update; prompts / mini-batch updates per step")
    micro_batch_tokens: int = flag(24576, "tokens, padding included, in one forward pass (ours; memory only)")
    rollout_rows: int = flag(256, "responses sampled at a time (ours; memory only)")
    lr: float = flag(1e-6, "AdamW learning rate, constant")
    weight_decay: float = flag(0.1, "AdamW weight decay (released code)")
    max_grad_norm: float = flag(1.0, "gradient clipping by global norm (released code)")
    temperature: float = flag(1.0, "of sampling and of log-probabilities")
    max_new_tokens: int = flag(20480, "longest response, tokens")
    max_prompt_tokens: int = flag(2048, "longer prompts are dropped, tokens")
    clip_low: float = flag(0.2, "ε_low of the ratio clip")
    clip_high: float = flag(0.28, "ε_high of the ratio clip (grpo: 0.2, its clip is symmetric)")
    K: int = flag(1, "DelTA: refinements of the centroids")
    lam_min: float = flag(0.8, "DelTA: λ_min, lower end of the coefficients' range")
    lam_max: float = flag(1.2, "DelTA: λ_max, upper end of the coefficients' range")
    delta_variant: str = flag("full", "DelTA: ablation of Tables 2 and 3", choices=[*delta.VARIANTS, "fixed_gamma", "random"])
    proxy: str = flag("lm_head", "DelTA: what stands for a token's gradient (App. F)", choices=["lm_head", "topk", "exact"])
    proxy_topk: int = flag(20, "DelTA: likeliest tokens of --proxy topk")
    select: str = flag("none", "DelTA: plain DAPO on tokens chosen by λ (Sec. 5.2)", choices=["none", "top", "random", "bottom"])
    select_share: float = flag(0.5, "DelTA: share of tokens that --select keeps")
    overlong_buffer: int = flag(0, "tokens before the limit in which the reward falls by up to 1 (released code: 4096; 0: off)")
    dynamic_sampling: bool = flag(False, "replace groups of equal rewards by further prompts (off in the paper)")
    seed: int = flag(0, "of data order and sampling")
    eval_every: int = flag(10, "steps between evaluations (ours); one before the first update, one after the last")
    eval_samples: int = flag(8, "responses per evaluation problem, the n of avg@n")
    eval_top_p: float = flag(0.7, "top-p of evaluation")
    save_every: int = flag(10, "steps between checkpoints (ours)")
    output_dir: str = flag("", "default runs/<model>-<method>-<seed>")
    resume: str = flag("auto", "auto: continue the run in --output-dir; never: it must not hold one", choices=["auto", "never"])
    toy_k: int = flag(5, "toy: operations in a problem")
    toy_noise: float = flag(0.2, "toy: share of wrong results in the base model's demonstrations")
    toy_filler: int = flag(1, "toy: connectives that open a step")


TOY = dict(steps=160, prompts=16, group_size=8, mini_batch=4, micro_batch_tokens=4096, lr=1e-4, max_new_tokens=64,
           max_prompt_tokens=64, eval_every=20, eval_samples=1, eval_top_p=1.0, save_every=20, data="toy", eval_data="toy-held-out")
MAY_CHANGE = {"steps", "eval_every", "save_every", "output_dir", "resume", "rollout_rows"}  # between a run and its resumption


def parse_config(argv: list[str] | None = None) -> Config:
    """The command line as a Config: flags, over the toy's or the method's preset, over the paper's defaults."""
    parser = Parser(Config, prog="train.py", allow_abbrev=False, description=__doc__.splitlines()[0],
                    epilog="With --model toy the defaults are: " + ", ".join(f"{k} {v}" for k, v in TOY.items()))
    given, _ = parser.parse_known_args(argv)
    parser.set_defaults(**(TOY if given.model == "toy" else {}), **({"clip_high": 0.2} if given.method == "grpo" else {}))
    cfg = Config(**vars(parser.parse_args(argv)))
    cfg.output_dir = cfg.output_dir or f"runs/{Path(cfg.model).name}-{cfg.method}-{cfg.seed}"
    deltas = ("K", "lam_min", "lam_max", "delta_variant", "proxy", "proxy_topk", "select", "select_share")
    foreign = next((name.replace("_", "-") for name in deltas if getattr(cfg, name) != getattr(Config, name)), "")
    for wrong, message in [
        (cfg.group_size < 2, f"--group-size {cfg.group_size}: an advantage compares at least 2 responses to a prompt"),
        (min(cfg.steps, cfg.prompts, cfg.mini_batch, cfg.max_new_tokens, cfg.micro_batch_tokens, cfg.rollout_rows,
             cfg.eval_every, cfg.eval_samples, cfg.save_every, cfg.toy_k) < 1,
         "steps, prompts, mini-batch, token limits, rows, eval-every, eval-samples, save-every and toy-k must be at least 1"),
        (cfg.prompts % cfg.mini_batch, f"--prompts {cfg.prompts} is not a multiple of --mini-batch {cfg.mini_batch}"),
        (cfg.K < 0 or not 0 <= cfg.lam_min <= cfg.lam_max < float("inf"),
         f"--K {cfg.K} --lam-min {cfg.lam_min} --lam-max {cfg.lam_max}: need K >= 0 and 0 <= lam-min <= lam-max"),
        (not (cfg.lr > 0 and cfg.temperature > 0), f"--lr {cfg.lr} --temperature {cfg.temperature}: both must be positive"),
        (not (cfg.weight_decay >= 0 and cfg.max_grad_norm > 0), "need weight-decay >= 0 and max-grad-norm > 0"),
        (not 0 < cfg.eval_top_p <= 1, f"--eval-top-p {cfg.eval_top_p} must be in (0, 1]"),
        (not (0 <= cfg.clip_low <= 1 and cfg.clip_high >= 0), "need 0 <= clip-low <= 1 and clip-high >= 0"),
        (cfg.seed < 0 or cfg.toy_filler < 0 or not 0 <= cfg.toy_noise <= 1, "need seed >= 0, toy-filler >= 0, 0 <= toy-noise <= 1"),
        (int(os.environ.get("WORLD_SIZE", 1)) > 1, "one process only so far: torchrun --nproc_per_node 1 train.py"),
        (not (0 < cfg.select_share <= 1 and cfg.proxy_topk > 0 and cfg.overlong_buffer >= 0),
         "need 0 < select-share <= 1, proxy-topk >= 1 and overlong-buffer >= 0"),
        (cfg.method != "delta" and foreign, f"--{foreign} is DelTA's and does nothing with --method {cfg.method}: drop it, or take delta"),
        (cfg.delta_variant == "random" and cfg.proxy != "lm_head", f"--delta-variant random uses no proxy: drop --proxy {cfg.proxy}"),
    ]:
        if wrong:
            raise UserError(message)
    return cfg


def open_run(cfg: Config) -> dict | None:
    """Make --output-dir and return the checkpoint to continue from, or None for a new run. Never loses a finished line."""
    folder = Path(cfg.output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").open("a").close()
    except OSError as error:
        raise UserError(f"--output-dir {folder} cannot be written ({error.strerror}): choose another")
    if (folder / "config.json").exists():
        before, now = json.loads((folder / "config.json").read_text()), asdict(cfg)
        changed = [f"{k} {before.get(k)} there, {now[k]} here" for k in now if k not in MAY_CHANGE and before.get(k) != now[k]]
        if cfg.resume == "never":
            raise UserError(f"--output-dir {folder} already holds a run: choose another, or --resume auto to continue it")
        if changed:
            raise UserError(f"--output-dir {folder} holds a run with other settings ({'; '.join(changed)}): choose another")
    elif (folder / "metrics.jsonl").stat().st_size:
        raise UserError(f"--output-dir {folder} holds metrics of something else (no config.json): choose another")
    checkpoint = None
    if (folder / "checkpoint.pt").exists():
        checkpoint = torch.load(folder / "checkpoint.pt", map_location="cpu", weights_only=True)
        if checkpoint["step"] > cfg.steps:
            raise UserError(f"{folder} is already at step {checkpoint['step']}: raise --steps, or choose another --output-dir")
    write_aside(folder / "config.json", lambda path: path.write_text(json.dumps(asdict(cfg), indent=1) + "\n"))
    for path in (folder / "metrics.jsonl", folder / "samples.jsonl"):  # lines after the checkpoint will be made again, the same
        lines = path.read_text().splitlines(keepends=True) if path.exists() and checkpoint else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= checkpoint["step"]]  # a kill halves one
        write_aside(path, lambda aside: aside.write_text("".join(kept)))
    return checkpoint


def write_aside(path: Path, write) -> None:
    """write(temporary path), then rename: whoever reads `path` finds the old content or the new, never half of it."""
    write(aside := path.with_name(path.name + ".tmp"))
    os.replace(aside, path)


# ---- the stages of a step --------------------------------------------------------------------------------------------


def update(policy: Policy, optimizer, rollouts: Rollouts, tokens: TokenBatch, weights: torch.Tensor, plan: list[list],
           cfg: Config, streak: int) -> tuple[dict, int]:
    """One optimiser step per mini-batch on -Σ λ̄ min(r A, clip(r) A) / N (Eq. 8), N the tokens of the whole mini-batch.

    A gradient norm that is not finite skips its update; `streak` counts these in a row, over steps too, and three raise
    FloatingPointError. Returns (metrics, streak).
    """
    length, losses, norms, clipped, skipped = rollouts.response_length, [], [], 0, 0
    for mini_batch in plan:
        optimizer.zero_grad()
        N, loss = sum(int(length[index].sum()) for index, _ in mini_batch), 0.0
        for index in (index for index, has_advantage in mini_batch if has_advantage):
            rows = packed_rows(index, length)
            logprob, old, A = policy.rows(rollouts, index).logprob, tokens.logprob[rows], tokens.advantage[rows]
            surrogate = SURROGATES.get(cfg.method, clipped_surrogate)(logprob, old, A, clip_low=cfg.clip_low, clip_high=cfg.clip_high)
            weight = weights[rows]
            if cfg.method in EVERY_UPDATE:
                weight = METHODS[cfg.method](tokens.part(rows, length[index], logprob.detach()), **asdict(cfg))
            part = -(weight * surrogate).sum() / N  # Eq. 8
            part.backward()
            loss += float(part.detach())
            if cfg.method not in SURROGATES:
                clipped += int(clipped_tokens(logprob.detach(), old, A, cfg.clip_low, cfg.clip_high).sum())
        losses.append(loss)
        if not any(has_advantage for _, has_advantage in mini_batch):
            continue  # no sides, no direction (App. C)
        norms.append(float(torch.nn.utils.clip_grad_norm_(policy.parameters(), cfg.max_grad_norm)))
        if norms[-1] < float("inf"):  # false for a NaN too
            optimizer.step()
            streak = 0
        else:
            norms.pop()
            skipped, streak = skipped + 1, streak + 1
        if streak == 3:
            raise FloatingPointError("the gradient norm was not finite in 3 updates in a row")
    return {"loss": sum(losses) / len(losses), "grad_norm": sum(norms) / max(1, len(norms)),
            "clip_fraction": clipped / int(length.sum()), "skipped_updates": skipped}, streak


# ---- the run ---------------------------------------------------------------------------------------------------------


def train(cfg: Config) -> Path:
    """Run or continue the training described by cfg; returns the output folder."""
    columns = (cfg.problem_column, cfg.answer_column, cfg.toy_k, cfg.seed)
    sets = [load_problems(name, *columns) if name else [] for name in (cfg.data, cfg.eval_data)]
    model, tokenizer = toy.base_model(cfg.toy_k, cfg.toy_noise, cfg.toy_filler) if cfg.model == "toy" else load_model(cfg.model)
    if cfg.proxy == "exact" and model.get_output_embeddings().weight.numel() > 2**16:
        raise UserError("--proxy exact keeps vocabulary x hidden numbers a token: only for models as small as the toy, take topk")
    (problems, prompts), held_out = [encode_prompts(some, tokenizer, cfg.max_prompt_tokens, cfg.prompt_template) for some in sets]
    evaluate = lambda: float(sample_scores(policy.lm, tokenizer, *held_out, cfg.eval_samples, cfg.max_new_tokens, cfg.temperature,
                                           cfg.eval_top_p, cfg.seed, cfg.rollout_rows).mean())  # avg@n
    checkpoint, folder = open_run(cfg), Path(cfg.output_dir)  # all that can be wrong with the flags has been seen by now
    policy = Policy(model, cfg.temperature)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
    state = {"step": 0, "position": 0, "streak": 0, "best": -1.0, "memory": {}}  # position: prompts drawn; memory: the method's
    if checkpoint:
        restore(checkpoint, policy, optimizer, state)
        print(f"continuing {folder} after step {state['step']}")
    elif cfg.eval_data:
        log(folder, {"step": 0, "eval_accuracy": evaluate()})

    for step in range(state["step"] + 1, cfg.steps + 1):
        start = time.perf_counter()
        # sample and verify: G responses per prompt from θ_old, R_i = 1 if the final answer is right, else 0
        rollouts, batch, rewards = collect(policy.lm, tokenizer, problems, prompts, cfg, state, step)
        # advantages: A_i = (R_i - mean) / std within each group
        shaping = [overlong_penalty(int(n), cfg.max_new_tokens, cfg.overlong_buffer) for n in rollouts.response_length]
        advantages = group_advantages(rewards + rewards.new_tensor(shaping), cfg.group_size)
        # score: log π_old, entropies and hidden states in one forward pass
        plan = plan_micro_batches(rollouts, advantages, cfg.mini_batch * cfg.group_size, cfg.micro_batch_tokens)
        tokens = score(policy, rollouts, advantages, plan)
        # coefficients: the method's weight for every token, frozen over the updates below
        generator = torch.Generator().manual_seed(1_000_003 * cfg.seed + step)
        weights = METHODS[cfg.method](tokens, **asdict(cfg), generator=generator, memory=state["memory"], problems=batch)
        # update: one optimiser step per mini-batch
        metrics, state["streak"] = update(policy, optimizer, rollouts, tokens, weights, plan, cfg, state["streak"])
        # log and save
        state["step"] = step
        metrics = {"step": step, **metrics, "reward": float(rewards.mean()), "entropy": float(tokens.entropy.mean()),
                   "response_length": float(tokens.length.float().mean()), "truncated": float(rollouts.truncated.float().mean()),
                   "lambda_std": float(weights.std()), "lambda_above_one": float((weights > 1).float().mean()),
                   "seconds": time.perf_counter() - start}
        if cfg.eval_data and (step % cfg.eval_every == 0 or step == cfg.steps):
            metrics["eval_accuracy"] = evaluate()
            if metrics["eval_accuracy"] > state["best"]:
                state["best"] = metrics["eval_accuracy"]
                export(folder / "best", policy, tokenizer)
        if step == 1 or step % cfg.eval_every == 0:
            save_samples(folder, step, batch, rollouts, rewards, weights, tokenizer)
        log(folder, metrics)
        if (step % cfg.save_every == 0 or step == cfg.steps) and not state["streak"]:  # never over a good checkpoint
            save(folder, policy, optimizer, state)
    return finish(folder, policy, tokenizer)


def log(folder: Path, metrics: dict) -> None:
    """Append one line to metrics.jsonl and print the gist of it."""
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(metrics) + "\n")
    shown = {"reward": "reward", "response_length": "length", "entropy": "entropy", "grad_norm": "grad", "clip_fraction": "clip",
             "lambda_std": "λ std", "seconds": "s", "eval_accuracy": "ACCURACY"}
    print(f"step {metrics['step']:4d}  " + "  ".join(f"{shown[k]} {metrics[k]:.3g}" for k in shown if k in metrics), flush=True)


def save_samples(folder: Path, step: int, batch, rollouts: Rollouts, rewards, weights, tokenizer, count: int = 4) -> None:
    """Append `count` responses, spread over the batch, with their tokens' λ (or the method's weights) to samples.jsonl."""
    with open(folder / "samples.jsonl", "a") as file:
        for i in range(0, len(batch), max(1, len(batch) // count)):
            rows = packed_rows(torch.tensor([i]), rollouts.response_length)
            words = [tokenizer.decode([token]) for token in rollouts.response_ids(i).tolist()]
            file.write(json.dumps({"step": step, **batch[i], "reward": float(rewards[i]), "response": rollouts.texts[i],
                                   "tokens": words, "lambda": [round(w, 4) for w in weights[rows].tolist()]}) + "\n")


def save(folder: Path, policy: Policy, optimizer, state: dict) -> None:
    """checkpoint.pt: model, optimiser, step, data position and random states, by way of a temporary name."""
    random = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    content = {**state, "model": policy.lm.state_dict(), "optimizer": optimizer.state_dict(), "random": random}
    write_aside(folder / "checkpoint.pt", lambda path: torch.save(content, path))


def restore(checkpoint: dict, policy: Policy, optimizer, state: dict) -> None:
    """Put back everything that `save` wrote."""
    policy.lm.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    torch.set_rng_state(checkpoint["random"][0])
    torch.cuda.set_rng_state_all(checkpoint["random"][1:])
    state |= {k: checkpoint[k] for k in state}


def export(folder: Path, policy: Policy, tokenizer) -> None:
    """A Hugging Face folder, written aside and renamed."""
    aside = folder.with_name(folder.name + ".tmp")
    policy.lm.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    if folder.exists():
        shutil.rmtree(folder)
    os.rename(aside, folder)


def finish(folder: Path, policy: Policy, tokenizer) -> Path:
    """Write the model as a Hugging Face folder and the curves, and say where all is."""
    export(folder / "model", policy, tokenizer)
    rows = [json.loads(line) for line in open(folder / "metrics.jsonl")]
    plot_curves(rows, folder / "curves.png")
    accuracy = [row["eval_accuracy"] for row in rows if "eval_accuracy" in row]
    print(f"done: {rows[-1]['step']} steps in {sum(row.get('seconds', 0) for row in rows):.0f} s, " +
          (f"accuracy {accuracy[0]:.3f} before and {accuracy[-1]:.3f} after, " if accuracy else "") +
          f"model/, curves.png, metrics.jsonl and samples.jsonl in {folder}")
    return folder


def plot_curves(rows: list[dict], path: Path) -> None:
    """Reward, response length and entropy against step, as in the paper's Fig. 2; held-out accuracy beside the reward."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, 3)
    for axis, key, unit in zip(axes, ("reward", "response_length", "entropy"), ("share right", "tokens", "nats per token")):
        axis.plot(*zip(*[(row["step"], row[key]) for row in rows if key in row]), color="#0072B2", label="training batch")
        axis.set(title=key.replace("_", " "), xlabel="step", ylabel=unit)
    if evals := [(row["step"], row["eval_accuracy"]) for row in rows if "eval_accuracy" in row]:
        axes[0].plot(*zip(*evals), "o-", color="#D55E00", label="held-out problems")
    axes[0].legend()
    figure.savefig(path, dpi=120)


def main(argv: list[str] | None = None) -> None:
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        train(parse_config(argv))
    except UserError as error:
        print(f"train.py: {error}", file=sys.stderr)
        sys.exit(2)
    except FloatingPointError as error:  # the run diverged: neither a bug nor a wrong flag
        sys.exit(f"train.py: stopped, {error}. The last checkpoint is untouched; try a lower --lr.")


if __name__ == "__main__":
    main()
