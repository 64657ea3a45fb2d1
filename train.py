"""RLVR on one page: sample, verify, advantages, coefficients, update, log, save.

`python train.py` trains the embedded toy with DelTA on a laptop; `torchrun --nproc_per_node 8 train.py --model ID` any Hugging
Face causal LM on any number of GPUs, with the paper's settings (App. I) as defaults. Writes config.json, metrics.jsonl,
samples.jsonl, curves.png, checkpoint-STEP/, model/ and best/ to --output-dir, and continues from the newest checkpoint there.

Departures from the paper: (1) dual clip for negative advantages, weight decay 0.1 and gradient clip 1.0 as in the released
code; (2) a mini-batch in which no response has an advantage makes no optimiser step; (3) one epoch per rollout batch.
"""
import json, os, shutil, signal, sys, time, traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from transformers.utils import logging as hf_logging

import delta  # noqa: F401  registers --method delta
import toy
from data import SOURCES, Rollouts, UserError, encode_prompts, load_problems, packed_rows, plan_micro_batches
from evaluate import Common, Parser, check_limits, collect, export, flag, log, report, sample_scores, save_samples, write_aside
from grpo import EVERY_UPDATE, METHODS, SURROGATES, TokenBatch, clipped_surrogate, clipped_tokens, group_advantages, over_ranks
from policy import Policy, load_policy, score, start_ranks, whole
from rollout import Interrupted
from verify import overlong_penalty


@dataclass
class Config(Common):
    """Every knob of a run. Defaults are the paper's (App. I) unless the help says otherwise; TOY replaces some. Common
    has the flags that evaluate.py takes too."""
    model: str = flag("toy", "`toy`, a local Hugging Face folder or a hub id")
    method: str = flag("delta", "token weights of the update (App. E)", choices=sorted(METHODS))
    data: str = flag("deepmath", f"training problems: toy, a .jsonl, .parquet or .csv file, {', '.join(SOURCES)}, or a hub id")
    eval_data: str = flag("aime25", "evaluation problems, as --data; the best checkpoint is kept by them; empty: none")
    steps: int = flag(220, "rollout batches (the paper's 8B: 220, 14B: 300)")
    prompts: int = flag(128, "prompts per step")
    group_size: int = flag(16, "responses per prompt, G")
    mini_batch: int = flag(32, "prompts per update; prompts / mini-batch updates per step")
    micro_batch_tokens: int = flag(24576, "tokens, padding included, in one forward pass of a rank (ours; memory only)")
    recompute: bool = flag(True, "recompute activations in the backward pass (ours; less memory, a third more compute)")
    proxy_budget_gb: float = flag(8.0, "DelTA: hidden states up to this size stay on the GPU, else in host memory (ours)")
    lr: float = flag(1e-6, "AdamW learning rate, constant")
    weight_decay: float = flag(0.1, "AdamW weight decay (released code)")
    max_grad_norm: float = flag(1.0, "gradient clipping by global norm (released code)")
    max_new_tokens: int = flag(20480, "longest response, tokens")
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
    eval_every: int = flag(10, "steps between evaluations (ours); one before the first update, one after the last")
    eval_samples: int = flag(8, "responses per evaluation problem, the n of avg@n")
    eval_top_p: float = flag(0.7, "top-p of evaluation")
    save_every: int = flag(10, "steps between checkpoints (ours)")
    resume: str = flag("auto", "auto: continue the run in --output-dir; never: it must not hold one", choices=["auto", "never"])
    toy_k: int = flag(5, "toy: operations in a problem")
    toy_noise: float = flag(0.2, "toy: share of wrong results in the base model's demonstrations")
    toy_filler: int = flag(1, "toy: connectives that open a step")
    dry_run: bool = flag(False, "print what the run would need of every GPU, from the model's config alone, and stop")
    world_size: int = flag(8, "dry run: GPUs, in nodes of up to 8")
    gpu_gb: float = flag(80.0, "dry run: memory of a GPU, GB")


TOY = dict(recompute=False, steps=160, prompts=16, group_size=8, mini_batch=4, micro_batch_tokens=4096, lr=1e-4, max_new_tokens=64,
           max_prompt_tokens=64, eval_every=20, eval_samples=1, eval_top_p=1.0, save_every=20, data="toy", eval_data="toy-held-out")
MAY_CHANGE = "steps eval_every save_every output_dir resume rollout_rows recompute proxy_budget_gb dry_run world_size gpu_gb".split()  # on resuming


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
    check_limits(cfg)
    for wrong, message in [
        (cfg.prompts % cfg.mini_batch, f"--prompts {cfg.prompts} is not a multiple of --mini-batch {cfg.mini_batch}"),
        (cfg.lam_min > cfg.lam_max, f"--lam-min {cfg.lam_min} is above --lam-max {cfg.lam_max}"),
        (cfg.world_size > 8 and cfg.world_size % 8, f"--world-size {cfg.world_size} is neither up to 8 nor a multiple of 8"),
        (cfg.method != "delta" and foreign, f"--{foreign} is DelTA's and does nothing with --method {cfg.method}: drop it, or take delta"),
        (cfg.delta_variant == "random" and cfg.proxy != "lm_head", f"--delta-variant random uses no proxy: drop --proxy {cfg.proxy}"),
    ]:
        if wrong: raise UserError(message)
    return cfg


def open_run(cfg: Config) -> None:
    """Make --output-dir, or check that the run in it is the one cfg describes. Raises UserError."""
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
        if changed: raise UserError(f"--output-dir {folder} holds a run with other settings ({'; '.join(changed)}): choose another")
    elif (folder / "metrics.jsonl").stat().st_size:
        raise UserError(f"--output-dir {folder} holds metrics of something else (no config.json): choose another")
    for cut_off in folder.glob("checkpoint-*.tmp"):
        print(f"skipping {cut_off}: it was cut off while being written")
        shutil.rmtree(cut_off)


def trim(cfg: Config, step: int) -> None:
    """Write config.json and drop the lines after the checkpoint, which will be made again, the same."""
    folder = Path(cfg.output_dir)
    write_aside(folder / "config.json", json.dumps(asdict(cfg), indent=1) + "\n")
    for path in (folder / "metrics.jsonl", folder / "samples.jsonl"):
        lines = path.read_text().splitlines(keepends=True) if path.exists() and step else []
        write_aside(path, "".join(x for x in lines if x.endswith("\n") and json.loads(x)["step"] <= step))  # a kill leaves half a line


# ---- the stages of a step --------------------------------------------------------------------------------------------


def update(policy: Policy, optimizer, rollouts: Rollouts, tokens: TokenBatch, weights: torch.Tensor, plan: list[list],
           cfg: Config, streak: int) -> tuple[dict, int]:
    """One optimiser step per mini-batch on -Σ λ̄ min(r A, clip(r) A) / N (Eq. 8), N the tokens of the whole mini-batch.

    A gradient norm that is not finite skips its update; `streak` counts these in a row, over steps too, and three raise
    FloatingPointError. Returns (metrics, streak).
    """
    length, loss, norms, clipped, skipped = rollouts.response_length, 0.0, [], 0, 0
    for part, mini_batch in zip(length.split(cfg.mini_batch * cfg.group_size), plan, strict=True):
        N = int(part.sum())  # of all ranks
        for index in (index for index, has_advantage in mini_batch if has_advantage):
            rows = packed_rows(index, length)
            logprob, old, A = policy.rows(rollouts, index).logprob, tokens.logprob[rows], tokens.advantage[rows]
            surrogate = SURROGATES.get(cfg.method, clipped_surrogate)(logprob, old, A, clip_low=cfg.clip_low, clip_high=cfg.clip_high)
            follows = cfg.method in EVERY_UPDATE
            weight = METHODS[cfg.method](tokens.part(rows, length[index], logprob.detach()), **asdict(cfg)) if follows else weights[rows]
            objective = (weight * surrogate).sum() / N  # Eq. 8
            (-objective * dist.get_world_size()).backward()  # FSDP averages over ranks, Eq. 8 sums
            loss -= float(objective.detach())
            if cfg.method not in SURROGATES: clipped += int(clipped_tokens(logprob.detach(), old, A, cfg.clip_low, cfg.clip_high).sum())
        if not any(has_advantage for _, has_advantage in mini_batch): continue  # no sides, no direction (App. C)
        norm = float(whole(torch.nn.utils.clip_grad_norm_(policy.parameters(), cfg.max_grad_norm)))
        finite = norm < float("inf")  # false for a NaN too
        if finite: optimizer.step()
        norms, skipped, streak = norms + [norm] * finite, skipped + (not finite), 0 if finite else streak + 1
        optimizer.zero_grad()
        if streak == 3: raise FloatingPointError("the gradient norm was not finite in 3 updates in a row")
    loss, clipped = over_ranks(torch.tensor([loss, clipped], dtype=torch.float64, device=length.device)).tolist()
    return {"loss": loss / len(plan), "grad_norm": sum(norms) / max(1, len(norms)),
            "clip_fraction": clipped / int(length.sum()), "skipped_updates": skipped}, streak


# ---- the run ---------------------------------------------------------------------------------------------------------


def train(cfg: Config) -> Path:
    """Run or continue the training described by cfg; returns the output folder. Every rank of a torchrun calls it."""
    rank, world, folder, stopping = *start_ranks(), Path(cfg.output_dir), []
    columns = (cfg.problem_column, cfg.answer_column, cfg.toy_k, cfg.seed)
    sets = [load_problems(name, *columns) if name else [] for name in (cfg.data, cfg.eval_data)]
    name = toy.base_folder(cfg.toy_k, cfg.toy_noise, cfg.toy_filler) if cfg.model == "toy" else cfg.model
    policy, tokenizer = load_policy(name, cfg.temperature, cfg.recompute)
    if cfg.proxy == "exact" and policy.lm.config.vocab_size * policy.lm.config.hidden_size > 2**16:
        raise UserError("--proxy exact keeps vocabulary x hidden numbers a token: only for models as small as the toy, take topk")
    (problems, prompts), held_out = [encode_prompts(some, tokenizer, cfg.max_prompt_tokens, cfg.prompt_template) for some in sets]

    def evaluate() -> float:  # avg@n
        with policy.plain() as lm:
            return float(sample_scores(lm, tokenizer, *held_out, cfg.eval_samples, cfg.max_new_tokens, cfg.temperature, cfg.eval_top_p,
                                       cfg.seed, cfg.rollout_rows).mean())

    if rank == 0: open_run(cfg)  # all that can be wrong with the flags has been seen by now
    dist.barrier()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, fused=True)
    state = {"step": 0, "position": 0, "streak": 0, "best": -1.0, "memory": {}}  # position: prompts drawn; memory: the method's
    restore(cfg, policy, optimizer, state)
    if rank == 0: trim(cfg, state["step"])
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    if cfg.eval_data and not state["step"]: log(folder, {"step": 0, "eval_accuracy": evaluate()})

    for step in range(state["step"] + 1, cfg.steps + 1):
        start, before = time.perf_counter(), dict(state)
        # sample and verify: G responses per prompt from θ_old, R_i = 1 if the final answer is right, else 0
        try:
            with policy.plain() as lm:
                rollouts, batch, rewards = collect(lm, tokenizer, problems, prompts, cfg, state, step, lambda: bool(stopping))
        except Interrupted:
            save(folder, policy, optimizer, before)
            raise Stop(f"stopped by SIGTERM after step {step - 1}, with a checkpoint: the same command continues", 143)
        # advantages: A_i = (R_i - mean) / std within each group
        shaping = [overlong_penalty(int(n), cfg.max_new_tokens, cfg.overlong_buffer) for n in rollouts.response_length]
        advantages = group_advantages(rewards + rewards.new_tensor(shaping), cfg.group_size)
        # score: log π_old, entropies and hidden states in one forward pass
        plan = plan_micro_batches(rollouts.prompt_length + rollouts.response_length, advantages, cfg.mini_batch * cfg.group_size,
                                  cfg.micro_batch_tokens, rank, world)
        tokens = score(policy, rollouts, advantages, plan, cfg.proxy_budget_gb)
        # coefficients: the method's weight for every token, frozen over the updates below
        generator = torch.Generator().manual_seed(1_000_003 * cfg.seed + step)
        weights = METHODS[cfg.method](tokens, **asdict(cfg), generator=generator, memory=state["memory"], problems=batch)
        tokens.hidden = None  # no one needs them any more: room for the update
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
        if step == 1 or step % cfg.eval_every == 0: save_samples(folder, step, batch, rollouts, rewards, weights, tokenizer)
        log(folder, metrics)
        if (step % cfg.save_every == 0 or step == cfg.steps) and not state["streak"]:  # never over a good checkpoint
            save(folder, policy, optimizer, state)
    export(folder / "model", policy, tokenizer)
    if rank == 0: report(folder)
    return folder


class Stop(Exception): """The run ends early but in good order: (message, exit code)."""


def save(folder: Path, policy: Policy, optimizer, state: dict) -> None:
    """checkpoint-STEP/: every rank's shards of weights and Adam moments, and state.pt; written aside, then renamed. The newest two stay."""
    aside = (final := folder / f"checkpoint-{state['step']:06d}").with_suffix(".tmp")
    if final.exists(): return
    try:
        dcp.save(dict(zip(("weights", "optimizer"), get_state_dict(policy, optimizer))), checkpoint_id=aside)
        if dist.get_rank() == 0:
            torch.save(state | {"random": torch.get_rng_state()}, aside / "state.pt")
            os.replace(aside, final)
            for old in sorted(folder.glob("checkpoint-*[0-9]"))[:-2]: shutil.rmtree(old)
    except (dcp.api.CheckpointException, OSError, RuntimeError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise Stop(f"{aside} could not be written ({str(error).splitlines()[-1]}); earlier checkpoints are untouched: make room, then "
                   "run the same command to continue", 1) from error
    dist.barrier()


def restore(cfg: Config, policy: Policy, optimizer, state: dict) -> None:
    """Put back what `save` wrote last, on any number of ranks; a damaged checkpoint is passed over with a message. Raises UserError."""
    folder = Path(cfg.output_dir)
    for path in (paths := sorted(folder.glob("checkpoint-*[0-9]"), reverse=True)):
        weights, moments = get_state_dict(policy, optimizer)
        try:
            saved = torch.load(path / "state.pt", weights_only=True)
            dcp.load({"weights": weights, "optimizer": moments}, checkpoint_id=path)
        except (dcp.api.CheckpointException, OSError, RuntimeError, EOFError) as error:
            print(f"skipping {path}: it is damaged ({str(error).splitlines()[-1]})")
            continue
        if saved["step"] > cfg.steps:
            raise UserError(f"{folder} is already at step {saved['step']}: raise --steps, or choose another --output-dir")
        set_state_dict(policy, optimizer, model_state_dict=weights, optim_state_dict=moments)
        torch.set_rng_state(saved["random"])
        state |= {k: saved[k] for k in state}
        if dist.get_rank() == 0: print(f"continuing {folder} after step {state['step']}")
        return
    if paths: raise UserError(f"every checkpoint in {folder} is damaged: delete it to start anew, or choose another --output-dir")


KNOBS = {"collect": "--rollout-rows", "score": "--micro-batch-tokens", "delta": "--proxy-budget-gb", "update": "--micro-batch-tokens"}


def main(argv: list[str] | None = None) -> Path | None:
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    first = int(os.environ.get("RANK", 0)) == 0  # what all ranks would say is said once
    try:
        cfg = parse_config(argv)
        if not cfg.dry_run: return train(cfg)
        from benchmarks.memory import dry_run
        dry_run(cfg)
    except UserError as error:
        if first: print(f"train.py: {error}", file=sys.stderr)
        sys.exit(2)
    except FloatingPointError as error:  # the run diverged: neither a bug nor a wrong flag
        sys.exit(f"train.py: stopped, {error}. The last checkpoint is untouched; try a lower --lr.")
    except torch.OutOfMemoryError as error:
        stage = next((frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.name in KNOBS), "update")
        sys.exit(f"train.py: out of GPU memory in {stage}: lower {KNOBS[stage]}, or spread the model over more GPUs "
                 f"(--dry-run says what it needs). {str(error).splitlines()[0]}")
    except Stop as stop:
        if first: print(f"train.py: {stop.args[0]}", file=sys.stderr)
        sys.exit(stop.args[1])


if __name__ == "__main__":
    main()
