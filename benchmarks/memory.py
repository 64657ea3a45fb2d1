"""What a run needs of every GPU, from the model's config alone: train.py --dry-run, and README's table (python bench.py memory).

Bytes, with P parameters on W shards (ranks of a node), L layers, T tokens of a micro-batch, H hidden, q = heads x head size, I the
MLP's width, V vocabulary, c bytes of a number in the computation (2 on GPUs: bfloat16). Parameters outside the layers (embedding,
norm, LM head) are FSDP's root unit and stay gathered during forward and backward.

    always    float32 weights and Adam's two moments 12 P / W; from the first backward of an update on, gradients 4 P / W
    rollout   + all weights gathered c P, logits of the rows in flight, and the KV cache in 60 % of what then is free
    scoring   + root and two layers gathered, one layer's working memory, a block of logits, and the hidden states kept for DelTA
    update    + root and two layers gathered, and the largest of
                the inputs of all layers c L T H (recomputed from in the backward pass), one layer's tensors and gradients
                c T (10 H + 9 q + 6 I), and the LM head's gradient c V H;
                those inputs, a block of logits three times and the LM head's gradient in float32 twice;
                the root's gradients in c and in float32, at the end

The factors 10, 9 and 6 were fitted to FSDP2 runs of the five Qwen3 sizes on fake tensors (tests/test_memory.py holds them to it); all
else is counted. Not in it: the CUDA context, NCCL and fragmentation, for which RESERVE is set aside.
"""
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from rollout import cache_bytes

GB, RESERVE, NODE, BLOCK = 1e9, 3e9, 8, 4 * 2**26  # a block of logits: policy.TokenLogprobs.blocks
QWEN3 = {  # hidden, MLP, layers, heads, tied embeddings; 8 KV heads of 128 and 151,936 words each (the models' config.json)
    "0.6B": (1024, 3072, 28, 16, True), "1.7B": (2048, 6144, 28, 16, True), "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12288, 36, 32, False), "14B": (5120, 17408, 40, 40, False)}


def qwen3(size: str) -> Qwen3Config:
    """The architecture of Qwen/Qwen3-<size>-Base."""
    hidden, mlp, layers, heads, tied = QWEN3[size]
    return Qwen3Config(vocab_size=151936, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads,
                       num_key_value_heads=8, head_dim=128, tie_word_embeddings=tied, max_position_embeddings=32768)


def plan(config, world: int, gpu_gb: float, micro_batch_tokens: int, max_prompt_tokens: int, max_new_tokens: int, responses: int,
         rollout_rows: int, proxy_budget_gb: float, recompute: bool = True, c: int = 2) -> dict:
    """Bytes on each GPU by phase (see above) and what follows; `responses` are those of a step on all ranks. Reads the config only."""
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config)
    count = lambda module: sum(p.numel() for p in module.parameters())
    P, layer, L = count(lm), count(lm.base_model.layers[0]), len(lm.base_model.layers)
    root, shards, T = P - L * layer, min(world, NODE), max(micro_batch_tokens, max_prompt_tokens + max_new_tokens)
    H, I, V = config.hidden_size, config.intermediate_size, config.vocab_size
    q = config.num_attention_heads * (getattr(config, "head_dim", None) or H // config.num_attention_heads)
    static, gathered, working = 12 * P / shards, c * (root + 2 * layer), c * T * (10 * H + 9 * q + 6 * I)
    hidden = responses / world * max_new_tokens * H * c
    kept = c * L * T * H if recompute else L * working / 2
    update = gathered + max(kept + working + c * V * H, kept + 3 * BLOCK + 8 * V * H, (c + 4) * root)
    sampling = static + c * P + 28 * V * rollout_rows  # logits in float32, and three float64 of that size in InverseCDF
    free = gpu_gb * GB - RESERVE - sampling
    longest = cache_bytes(config, c) * (max_prompt_tokens + max_new_tokens)
    rows = max(0, min(rollout_rows, int(0.6 * free / longest)))
    return {"parameters": P, "static": static, "gradients": 4 * P / shards, "rollout": sampling + rows * longest, "rows": rows,
            "cache_per_token": cache_bytes(config, c), "scoring": static + gathered + working / 2 + 3 * BLOCK + min(hidden, proxy_budget_gb * GB),
            "activations": update, "update": static + 4 * P / shards + update, "hidden": hidden, "hidden_on_host": hidden > proxy_budget_gb * GB}


def dry_run(cfg) -> None:
    """Print the plan of train.py's flags."""
    import toy
    from policy import locate
    config = locate(toy.base_folder(cfg.toy_k, cfg.toy_noise, cfg.toy_filler) if cfg.model == "toy" else cfg.model)[1]
    p = plan(config, cfg.world_size, cfg.gpu_gb, cfg.micro_batch_tokens, cfg.max_prompt_tokens, cfg.max_new_tokens, cfg.prompts * cfg.group_size,
             cfg.rollout_rows, cfg.proxy_budget_gb, cfg.recompute)
    peak, gb = max(p[phase] for phase in ("rollout", "scoring", "update")) + RESERVE, lambda x: f"{x / GB:.1f} GB"
    print(f"{cfg.model}: {p['parameters'] / 1e9:.2f} billion parameters on {cfg.world_size} GPUs of {cfg.gpu_gb:g} GB; on each:\n"
          f"  weights and Adam moments, float32     {gb(p['static'])}, gradients {gb(p['gradients'])}\n"
          f"  rollout   {gb(p['rollout'])}, of it {gb(p['rows'] * p['cache_per_token'] * (cfg.max_prompt_tokens + cfg.max_new_tokens))} KV cache "
          f"({p['cache_per_token']:,} bytes a token): {p['rows']} responses in flight even if all are of the longest\n"
          f"  scoring   {gb(p['scoring'])}; hidden states of the longest responses {gb(p['hidden'])}, kept {'in host memory' if p['hidden_on_host'] else 'on the GPU'}\n"
          f"  update    {gb(p['update'])}, of it {gb(p['activations'])} activations and gathered layers at the longest micro-batch\n"
          f"  reserved  {gb(RESERVE)} for the CUDA context, NCCL and fragmentation")
    print(f"fits: {gb(peak)} of {cfg.gpu_gb:g} GB" if peak <= cfg.gpu_gb * GB and p["rows"] else
          f"does not fit: {gb(peak)} of {cfg.gpu_gb:g} GB and {p['rows']} responses in flight; more GPUs, or lower --micro-batch-tokens or --max-new-tokens")


def memory(args) -> None:
    """README's table: the paper's settings on GPUs of 80 GB."""
    import train
    cfg = train.parse_config(["--model", "Qwen/Qwen3"])
    print("| Qwen3 | parameters | GPUs | rollout, GB (rows in flight at the longest) | scoring, GB | update, GB | fits 80 GB |\n|---|---|---|---|---|---|---|")
    for size in QWEN3:
        for world in (1, 4, 8):
            p = plan(qwen3(size), world, 80, cfg.micro_batch_tokens, cfg.max_prompt_tokens, cfg.max_new_tokens, cfg.prompts * cfg.group_size,
                     cfg.rollout_rows, cfg.proxy_budget_gb)
            fits = max(p["rollout"], p["scoring"], p["update"]) + RESERVE <= 80 * GB and p["rows"]
            print(f"| {size} | {p['parameters'] / 1e9:.2f} billion | {world} | {p['rollout'] / GB:.0f} ({p['rows']}) | {p['scoring'] / GB:.0f} | "
                  f"{p['update'] / GB:.0f} | {'yes' if fits else 'no'} |")
