"""Makes tiny random models of many architectures, and changes the files of a model's folder.

`PYTHONPATH=. python tests/models.py` measures these models, and prints the table of docs/models.md.
"""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import mkdtemp
from unittest import mock

import torch
from safetensors.torch import load_file, save_file
from sampling import sampled
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

import toy
from infra import sampler
from infra.ranks import start_ranks
from train import load_policy

VOCABULARY = 40  # more than the toy tokenizer's 30 tokens

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 8}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
GEMMA = ALTERNATING | {"query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0}
SCALES = {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4, "num_experts": 4}
SHARED_EXPERT = EXPERTS | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
ROUTED = {
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {  # keys and values are compressed
    "num_key_value_heads": 4,
    "head_dim": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
DELTA_RULE = LINEAR | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
CONVOLUTION = {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}
MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
MAMBA2 = MAMBA | {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}

# Dropout is on in every architecture that has it, so the tests detect code that leaves it on.
ATTENTION = {
    "llama": {"attention_dropout": 0.1},
    "qwen2": {"attention_dropout": 0.1},
    "qwen3": {"tie_word_embeddings": True},
    "mistral": WINDOW,
    "olmo2": {},
    "olmo3": ALTERNATING,
    "gemma": {},
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "granite": SCALES | {"logits_scaling": 0.5},
    "cohere": {"logit_scale": 0.3},
    "cohere2": ALTERNATING | {"logit_scale": 0.3},
    "glm4": {},
    "smollm3": {},
    "phi": {"resid_pdrop": 0.1, "embd_pdrop": 0.1},
    "phi3": WINDOW | {"resid_pdrop": 0.1, "embd_pdrop": 0.1},
    "stablelm": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
    "starcoder2": WINDOW | {"residual_dropout": 0.1, "embedding_dropout": 0.1},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.1},
    "gpt2": {},
    "gpt_neox_japanese": {"hidden_dropout": 0.1},
    "bloom": {"hidden_dropout": 0.1},
    # from_pretrained joins, splits or renames the tensors in the files of these models.
    "gpt_neox": {"hidden_dropout": 0.1},
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS | {"moe_intermediate_size": 16},
}
RECENT = {  # released in 2025 and 2026
    "apertus": {"attention_dropout": 0.1},
    "arcee": {"attention_dropout": 0.1},
    "ernie4_5": {},
    "exaone4": ALTERNATING | {"attention_dropout": 0.1},
    "gemma4_text": GEMMA | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 40},
    "hunyuan_v1_dense": {"attention_dropout": 0.1},
    "ministral": WINDOW,
    "ministral3": {"attention_dropout": 0.1},
    "nanochat": {},
    "seed_oss": {"attention_dropout": 0.1},
    "gpt_oss": EXPERTS | ALTERNATING,
    "llama4_text": EXPERTS
    | {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 8},
    "deepseek_v3": LATENT | ROUTED | {"first_k_dense_replace": 1},
    "glm4_moe_lite": LATENT | ROUTED | {"first_k_dense_replace": 1},
}
RECURRENT = {  # recurrent layers beside attention
    "qwen3_5_text": DELTA_RULE,
    "qwen3_5_moe_text": DELTA_RULE | SHARED_EXPERT,
    "qwen3_next": DELTA_RULE | SHARED_EXPERT,
    "olmo_hybrid": DELTA_RULE,
    "kimi_linear": LATENT | ROUTED | LINEAR | {"linear_num_heads": 4, "linear_head_dim": 8},
    "lfm2": CONVOLUTION | {"block_auto_adjust_ff_dim": False},
    "lfm2_moe": CONVOLUTION | EXPERTS | {"num_dense_layers": 1, "moe_intermediate_size": 16},
    "lfm3": {"num_hidden_layers": 4},
    "falcon_h1": MAMBA2 | {"mamba_d_ssm": 64},
    "bamba": MAMBA2 | {"attn_layer_indices": [1]},
    "granitemoehybrid": MAMBA2 | EXPERTS | {"layer_types": ["mamba", "attention"]},
    "jamba": MAMBA | EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1},
    "nemotron_h": ROUTED
    | {"layers_block_type": ["mamba", "mlp", "attention", "moe"], "num_hidden_layers": 4}
    | {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 8},
}
WITHOUT_CACHE = {  # recurrent layers only: their `generate` takes no cache
    "mamba": {},
    "falcon_mamba": {},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 8, "chunk_size": 8},
}
EXACT = ATTENTION | RECENT | RECURRENT | WITHOUT_CACHE
REFUSED = {
    "bert": {"is_decoder": True},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "qwen4_exp_text": DELTA_RULE
    | SHARED_EXPERT
    | {"layer_types": ["linear_attention", "indexed_attention"], "hc_count": 2, "hc_lowrank": 8}
    | {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8}
    | {"indexer_budget": 8, "indexer_compress_ratio": 2},
}

VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
QWEN_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
}
WHOLE = {  # models of text and images: (the language model inside, the vision part, other keys)
    "qwen3_5": ("qwen3_5_text", QWEN_VISION, {"tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", VISION, {"mm_tokens_per_image": 4}),
    "gemma4": ("gemma4_text", VISION | {"num_key_value_heads": 2, "head_dim": 16}, {}),
    "mistral3": ("ministral3", VISION | {"model_type": "pixtral", "head_dim": 16}, {}),
    "llava": ("llama", VISION | {"model_type": "clip_vision_model"}, {}),
}

KINDS = {  # the rows of docs/models.md
    "attention": ATTENTION,
    "attention, of 2025 and 2026": RECENT,
    "recurrent layers beside attention": RECURRENT,
    "recurrent layers only": WITHOUT_CACHE,
    "text and images: the language model inside": WHOLE,
}


def random_lm(name: str, **changes) -> torch.nn.Module:
    """A `name` model with random weights. changes: keys of its (language model's) config."""
    if name in WHOLE:
        inside, vision, more = WHOLE[name]
        text = SMALL | EXACT[inside] | {"model_type": inside, "final_logit_softcapping": None}
        config = CONFIG_MAPPING[name](text_config=text | changes, vision_config=vision, **more)
        kind = AutoModelForMultimodalLM
    else:
        config = CONFIG_MAPPING[name](**(SMALL | (EXACT | REFUSED)[name] | changes))
        kind = AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm = kind.from_config(config)
        for parameter in lm.parameters():  # including biases, which start at 0
            parameter.data += 0.15 * torch.randn_like(parameter)
    return lm.eval()


def save_random_model(name: str, folder, **changes) -> None:
    """Save a random model, along with the toy's tokenizer."""
    random_lm(name, **changes).save_pretrained(folder)
    toy.build_tokenizer().save_pretrained(folder)


def published_model(name: str, folder) -> torch.nn.Module:
    """The model as from_pretrained returns it."""
    kind = AutoModelForMultimodalLM if name in WHOLE else AutoModelForCausalLM
    return kind.from_pretrained(folder).eval()


def response_logits(lm, prompt, tokens) -> torch.Tensor:
    """The logits [n, V] of n tokens after a prompt, from one pass without a cache."""
    ids = torch.tensor([[*prompt, *tokens]]).long()
    return lm(ids).logits[0, len(prompt) - 1 : -1].float()


@torch.no_grad()
def sampling_difference(published, folder, policy, first: int = 1) -> float:
    """The largest difference of a sampled token's log p from the published model's, in nats.

    The published model reads each sequence at once, without a cache. Responses are longer than
    every window. With chunks of 8 tokens and 4 of 6 responses in flight, some responses leave while
    others arrive. first: tokens of the first prompt; the other has 11. folder: has the model's
    tokenizer.
    """
    prompts = [random_ids(first).tolist(), random_ids(11, seed=1).tolist()]
    limits = {"max_new_tokens": 14, "temperature": policy.temperature, "in_flight": 4}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with policy.unsharded() as lm, mock.patch.object(sampler, "CHUNK", 8):
        responses = sampled(lm, tokenizer, prompts, [0, 1], 3, seed=7, **limits)
    assert max(len(each.tokens) for each in responses) == 14

    worst = 0.0
    for each in responses:
        logits = response_logits(published, each.prompt, each.tokens)
        logp = (logits / policy.temperature).log_softmax(-1)
        tokens = torch.from_numpy(each.tokens).long()
        expected = logp.gather(1, tokens[:, None]).squeeze(1)
        worst = max(worst, float((torch.from_numpy(each.sampler_logprob) - expected).abs().max()))
    return worst


def byte_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """A tokenizer for any text, with a token per byte, special tokens, and the end token <end>."""
    alphabet = sorted(ByteLevel.alphabet())
    tokens = {token: i for i, token in enumerate([*alphabet, "<end>"])}
    words = Tokenizer(BPE(tokens, []))
    words.pre_tokenizer, words.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", **special)


def random_ids(length: int, seed: int = 0) -> torch.Tensor:
    """Random ids [length], without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (length,), generator=generator)


def change_config(folder, **changes) -> None:
    """Set keys of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder, change) -> None:
    """Rewrite model.safetensors with change(dictionary of its tensors)."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def print_table() -> None:
    """Measure every architecture, and print the table of docs/models.md."""
    start_ranks()
    print("| layers | architectures | largest difference of log p, nats |\n|---|---|---|")
    for kind, names in KINDS.items():
        worst = 0.0
        for name in names:
            folder = Path(mkdtemp()) / name
            save_random_model(name, folder)
            with redirect_stdout(sys.stderr):
                policy, _ = load_policy(folder, temperature=0.7)
            published = published_model(name, folder)
            worst = max(worst, sampling_difference(published, folder, policy))
        print(f"| {kind} | {', '.join(names)} | {worst:.1e} |", flush=True)


if __name__ == "__main__":
    print_table()
