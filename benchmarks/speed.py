"""Speed and memory of the parts: `overhead`, `rollouts`, `logprobs`, `scaling` (bench.py). CPU figures unless there is a GPU.

What DelTA's coefficients cost, counted: 2K + 3 passes over the hidden states, [N, H] numbers of b bytes each: (2K + 3) N H b bytes read,
(6K + 8) N H floating-point operations (a multiply and an add per number in every centroid's two sides and in every margin, one
multiply for (1 - p), a comparison for the scale). At K = 1, H = 4,096 and bfloat16 that is 40 kB and 57 kFLOP a token, against
2 x 8.2 billion x 3 FLOP for the token's forward and backward pass. They are bound by memory bandwidth: `overhead` prints the bandwidth
they reach as a share of what a plain sum over the same numbers reaches.
"""
import json, multiprocessing, os, resource, statistics, subprocess, sys, tempfile, time
from pathlib import Path

import numpy as np, torch
from transformers import GenerationConfig, LogitsProcessorList, Qwen3Config, Qwen3ForCausalLM

import rollout as rollouts_module
import toy, train
from data import pack, plan_micro_batches
from delta import RowProxy, delta_coefficients
from grpo import METHODS, group_advantages
from policy import Policy, TokenLogprobs, score, start_ranks
from rollout import InverseCDF, generate, left_padded, rollout


def spread(values, digits: int = 3) -> str:
    """median (min to max)"""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def alternate(functions: dict, repetitions: int) -> dict[str, list[float]]:
    """Seconds of each function, called in turn `repetitions` times after one call that does not count."""
    seconds = {name: [] for name in functions}
    for repetition in range(repetitions + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if torch.cuda.is_available(): torch.cuda.synchronize()
            if repetition:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def random_model(hidden: int, vocabulary: int = 151936, layers: int = 2) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3 with heads of 64; token 1 ends a response."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64, num_key_value_heads=max(1, hidden // 128),
        head_dim=64, intermediate_size=3 * hidden, tie_word_embeddings=True, eos_token_id=1, pad_token_id=0, bos_token_id=None)).eval()


class Scripted(InverseCDF):
    """Samples as ever, but a response ends where its uniform number says so (2.0), and only there: lengths by script."""

    def __call__(self, input_ids, scores):
        scores[:, 1] = -torch.inf
        out = super().__call__(input_ids, scores)
        end = self.uniforms[:, input_ids.shape[1] - self.prompt_width] > 1
        out[end] = torch.full_like(out[0], -torch.inf).index_fill_(0, torch.tensor(1, device=out.device), 0.0)
        return out


def scripted_jobs(lengths, width: int = 16) -> list[tuple]:
    """Jobs for rollout.generate whose responses have these lengths; four responses to a prompt."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 30, size=width).tolist() for _ in range(len(lengths) // 4 + 1)]

    def numbers(i, n):
        u = np.random.default_rng(i).random(max(lengths))
        u[n - 1] = 2.0
        return u

    return [(prompts[i // 4], lambda i=i, n=n: numbers(i, n)) for i, n in enumerate(lengths)]


def sampled(lm, lengths, chunk: int = 64) -> list[list[int]]:
    """Responses of these lengths by rollout.generate."""
    rollouts_module.InverseCDF, rollouts_module.CHUNK, before = Scripted, chunk, (InverseCDF, rollouts_module.CHUNK)
    try:
        with torch.no_grad():
            return generate(lm, scripted_jobs(lengths), max(lengths), [1], rows=len(lengths))
    finally:
        rollouts_module.InverseCDF, rollouts_module.CHUNK = before


def plain_generate(lm, lengths) -> None:
    """The same responses by one call of Hugging Face `generate`, which holds every row until the last one ends."""
    jobs = scripted_jobs(lengths)
    ids, mask = left_padded([torch.tensor(prompt) for prompt, _ in jobs], lm.device)
    choose = Scripted(torch.from_numpy(np.stack([u() for _, u in jobs])), ids.shape[1], 1.0, 1.0)
    with torch.no_grad():
        lm.generate(ids, attention_mask=mask, logits_processor=LogitsProcessorList([choose]), generation_config=GenerationConfig(
            do_sample=False, max_new_tokens=max(lengths), eos_token_id=1, pad_token_id=0))


# ---- overhead ----------------------------------------------------------------------------------------------------------


def stages(policy: Policy, length: int, responses: int, mini_batches: int, micro_batch_tokens: int, trains: bool = True) -> dict:
    """name -> function for the stages of one step on scripted responses: sampling, scoring, coefficients and, if it trains, update."""
    start_ranks()
    lengths, device = [length] * responses, policy.lm.device

    def sampling():
        with policy.plain() as lm: return sampled(lm, lengths)

    prompts = [prompt for prompt, _ in scripted_jobs(lengths)]
    batch = pack(prompts, sampling(), [""] * responses, [1], device)
    advantages = group_advantages(torch.arange(responses, device=device).remainder(2).float(), 4)
    cfg = train.parse_config(["--group-size", "4", "--mini-batch", str(responses // 4 // mini_batches), "--prompts", str(responses // 4)])
    plan = plan_micro_batches(batch.prompt_length + batch.response_length, advantages, responses // mini_batches, micro_batch_tokens)
    tokens = score(policy, batch, advantages, plan)
    weights = METHODS["delta"](tokens)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=True) if trains else None
    update = {"update": lambda: train.update(policy, optimizer, batch, tokens, weights, plan, cfg, 0)} if trains else {}
    return {"sampling": sampling, "scoring": lambda: score(policy, batch, advantages, plan), "coefficients": lambda: METHODS["delta"](tokens), **update}


def overhead(args) -> list[dict]:
    """Shares of a training step, K = 1; then K + 2 forward passes over all responses, as the released code makes, over our coefficients."""
    print("| model | tokens | sampling, s | scoring, s | update, s | coefficients, ms | share of the step | K + 2 forward passes over coefficients |\n"
          "|---|---|---|---|---|---|---|---|")
    rows = []
    cases = [("toy, hidden 64, V 30", toy.build_model(), 40, 128, 4, 4096)] + [
        (f"hidden {h}, V 151,936", h, 64, 16, 1, 1024) for h in (256, 512, 1024)]
    for name, lm, length, responses, mini_batches, budget in cases:
        lm = random_model(lm) if isinstance(lm, int) else lm
        t = alternate(stages(Policy(lm), length, responses, mini_batches, budget), args.repetitions)
        share = [100 * c / (a + b + c + d) for a, b, c, d in zip(*t.values())]
        times = [3 * s / c for s, c in zip(t["scoring"], t["coefficients"])]
        print(f"| {name} | {length * responses} | {spread(t['sampling'])} | {spread(t['scoring'])} | {spread(t['update'])} | "
              f"{spread([1e3 * x for x in t['coefficients']], 2)} | {spread(share)} % | {spread(times, 0)} |", flush=True)
        rows.append({"model": name, "tokens": length * responses, **t, "share_percent": share, "released_over_ours": times})
    print("\noverhead of a training step: " + ", ".join(f"{statistics.median(r['share_percent']):.3f} % ({r['model']})" for r in rows))
    N, H = 100_000, 1024
    hidden, logprob, advantage = torch.randn(N, H), -torch.rand(N), torch.randn(N)
    t = alternate({"coefficients": lambda: delta_coefficients(RowProxy(hidden, logprob), advantage), "sum": lambda: hidden.sum()}, args.repetitions)
    floor = [5 * s / c for s, c in zip(t["sum"], t["coefficients"])]
    print(f"at N = {N:,}, H = {H}: {spread(t['coefficients'])} s, {spread([100 * x for x in floor], 0)} % of the speed of five plain sums over the same numbers")
    return [*rows, {"floor": floor, **t}]


# ---- sampling ----------------------------------------------------------------------------------------------------------


def peak_memory(function, *arguments) -> float:
    """GB by which the peak of a fresh process grows while function(*arguments) runs; function prepares, and returns what to run."""
    def work(pipe):
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
        run = function(*arguments)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run()
        pipe.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024) / 1e9)

    here, there = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=work, args=(there,))
    process.start()
    answer = here.recv()
    process.join()
    return answer


MIXES = {"even": [128] * 256, "mild": [64 + i % 129 for i in range(256)], "heavy": [640 if i % 10 == 0 else 64 for i in range(256)]}


def rollouts(args) -> list[dict]:
    """Tokens per second of chunked sampling and of one plain generate call, a toy model and a wider one; memory by peak_memory."""
    print("| model | lengths | plain, tokens/s | chunked, tokens/s | chunked / plain time | plain, GB | chunked, GB |\n|---|---|---|---|---|---|---|")
    rows = []
    for hidden, count, repetitions in ((64, 256, args.repetitions), (256, 128, 1)):
        for mix, lengths in MIXES.items():
            name, lengths = f"hidden {hidden}, {count} responses", lengths[:count]
            memory = [peak_memory(lambda f=f: (lambda lm=random_model(hidden, 4096): f(lm, lengths))) for f in (plain_generate, sampled)]
            lm = random_model(hidden, 4096)
            t = alternate({"plain": lambda: plain_generate(lm, lengths), "chunked": lambda: sampled(lm, lengths)}, repetitions)
            ratio = [b / a for a, b in zip(t["plain"], t["chunked"])]
            print(f"| {name} | {mix} | {spread([sum(lengths) / x for x in t['plain']], 0)} | {spread([sum(lengths) / x for x in t['chunked']], 0)} | "
                  f"{spread(ratio, 2)} | {memory[0]:.2f} | {memory[1]:.2f} |", flush=True)
            rows.append({"model": name, "mix": mix, "tokens": sum(lengths), **t, "memory_gb": memory})
    return rows


# ---- log-probabilities -------------------------------------------------------------------------------------------------


def logprob_case(kind: str, tokens: int, hidden: int = 512, vocabulary: int = 151936):
    """A function that runs forward and backward of log-probabilities, blockwise or by one log-softmax, and returns them."""
    g = torch.Generator().manual_seed(0)
    h = torch.randn(tokens, hidden, generator=g).requires_grad_()
    W, y = (torch.randn(vocabulary, hidden, generator=g) / hidden**0.5).requires_grad_(), torch.randint(vocabulary, (tokens,), generator=g)

    def run():
        h.grad = W.grad = None
        logprob = TokenLogprobs.apply(h, W, y, 1.0, False)[0] if kind == "blocks" else (h @ W.T).log_softmax(-1).gather(1, y[:, None]).squeeze(1)
        logprob.sum().backward()
        return logprob.detach(), h.grad, W.grad

    return run


def logprobs(args) -> list[dict]:
    """Forward and backward at V = 151,936, H = 512: seconds, growth of the peak, agreement."""
    print("| tokens | full, s | blocks, s | full, GB | blocks, GB | largest difference of log p, of gradients |\n|---|---|---|---|---|---|")
    rows = []
    for tokens in (512, 1024):
        full, blocks = (logprob_case(kind, tokens) for kind in ("full", "blocks"))
        t = alternate({"full": full, "blocks": blocks}, min(args.repetitions, 3))
        memory = [peak_memory(logprob_case, kind, tokens) for kind in ("full", "blocks")]
        differences = [float((a - b).abs().max()) for a, b in zip(full(), blocks())]
        print(f"| {tokens} | {spread(t['full'], 1)} | {spread(t['blocks'], 1)} | {memory[0]:.2f} | {memory[1]:.2f} | {differences[0]:.1e}, "
              f"{max(differences[1:]):.1e} |", flush=True)
        rows.append({"tokens": tokens, **t, "memory_gb": memory, "differences": differences})
    return rows


# ---- scaling -----------------------------------------------------------------------------------------------------------


def exponent(sizes, seconds) -> float:
    """The slope of log seconds against log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def scaling(args) -> list[dict]:
    """Seconds of the stages as one size doubles and the others stay (toy model, 4 updates), with the fitted exponents; then ranks."""
    print("| what grows | sizes | sampling | scoring | update | coefficients | growth of the peak, GB |\n|---|---|---|---|---|---|---|")
    rows = []
    for what, sizes, case in [("responses", (64, 128, 256, 512), lambda n: (Policy(toy.build_model()), 40, n, 4, 4096)),
                              ("response length", (40, 80, 160, 320), lambda n: (Policy(toy.build_model()), n, 64, 4, 4096))]:
        t = {n: {k: statistics.median(v) for k, v in alternate(stages(*case(n)), args.repetitions).items()} for n in sizes}
        memory = [peak_memory(lambda n=n: (lambda s=stages(*case(n)): [f() for f in s.values()])) for n in sizes]
        fitted = [exponent(sizes, [t[n][k] for n in sizes]) for k in ("sampling", "scoring", "update", "coefficients")]
        print(f"| {what} | {', '.join(map(str, sizes))} | " + " | ".join(f"exponent {x:.2f}" for x in fitted) + " | " +
              ", ".join(f"{x:.2f}" for x in memory) + " |", flush=True)
        rows.append({"what": what, "sizes": sizes, "seconds": t, "exponents": fitted, "memory_gb": memory})
    sizes = [2**k for k in range(15, 21)]
    seconds = []
    for n in sizes:
        v, advantage = RowProxy(torch.randn(n, 256), -torch.rand(n)), torch.randn(n)
        seconds.append(statistics.median(alternate({"t": lambda: delta_coefficients(v, advantage)}, args.repetitions)["t"]))
    print(f"\ncoefficients alone, H = 256, {sizes[0]:,} to {sizes[-1]:,} tokens: exponent {exponent(sizes, seconds):.2f} (1 is linear)")
    rows.append({"what": "tokens", "sizes": sizes, "seconds": seconds})
    for what, flags in [("group size", [["--prompts", str(128 // g), "--mini-batch", str(32 // g), "--group-size", str(g)] for g in (4, 8, 16, 32)]),
                        ("ranks", [["ranks", str(n)] for n in (1, 2)])]:
        seconds = []
        for case in flags:
            ranks, case = (int(case[1]), []) if case[0] == "ranks" else (1, case)
            with tempfile.TemporaryDirectory() as folder:
                launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)] if ranks > 1 else []
                subprocess.run([sys.executable, *launch, str(Path(train.__file__)), "--steps", "8", "--eval-data", "", "--output-dir", folder, *case],
                               check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
                seconds.append(statistics.median([json.loads(line)["seconds"] for line in open(Path(folder) / "metrics.jsonl")][2:]))
        print(f"{what}: seconds a step of the toy, one thread a rank: " + ", ".join(f"{' '.join(c[-2:])}: {s:.2f}" for c, s in zip(flags, seconds)), flush=True)
        rows.append({"what": what, "seconds": seconds})
    return rows
