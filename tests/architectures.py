"""Tiny random models of many architectures, saved in folders for `--model`."""

import functools

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import toy

VOCABULARY = 40  # more than the tokenizer's 30

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
GPT2_NAMES = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 8}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
SHARP = {"query_pre_attn_scalar": 8}

# Dropout is on in every architecture that has it, so the tests detect code that leaves it on.
EXACT = {
    "llama": {"attention_dropout": 0.1},
    "qwen2": {"attention_dropout": 0.1},
    "qwen3": {"tie_word_embeddings": True},
    "mistral": WINDOW,
    "olmo2": {},
    "olmo3": ALTERNATING,
    "gemma": {},
    "gemma2": ALTERNATING | SHARP | {"final_logit_softcapping": 3.0},
    "gemma3_text": ALTERNATING | SHARP | {"final_logit_softcapping": 3.0},
    "granite": {
        "logits_scaling": 0.5,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
    },
    "cohere": {"logit_scale": 0.3},
    "cohere2": ALTERNATING | {"logit_scale": 0.3},
    "glm4": {},
    "smollm3": {},
    "phi": {"resid_pdrop": 0.1, "embd_pdrop": 0.1},
    "phi3": {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "sliding_window": 8},
    "stablelm": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
    "starcoder2": {"residual_dropout": 0.1, "embedding_dropout": 0.1, "sliding_window": 8},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.1},
    "gpt2": {},
    "gpt_neox_japanese": {"hidden_dropout": 0.1},
    "bloom": {"n_layer": 2, "n_head": 4, "hidden_dropout": 0.1},
    # from_pretrained joins, splits or renames the tensors in the files of these models.
    "gpt_neox": {"hidden_dropout": 0.1},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
REFUSED = {
    "bert": {"is_decoder": True},
    "mamba": {},
    "qwen3_next": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention"],
    },
}
WHY = {  # part of the message that refuses the model
    "bert": "log-probabilities in training differ",
    "mamba": "LinearAttentionLayer",
    "qwen3_next": "LinearAttentionLayer",
}
EVALUATED = ("bert",)  # refused only in training
CONFIGS = EXACT | REFUSED


def small_config(name: str, **changes):
    """The configuration of a tiny `name` model, with `changes` applied."""
    small = GPT2_NAMES if name == "gpt2" else SMALL
    return CONFIG_MAPPING[name](**(small | CONFIGS[name] | changes))


def save_random_model(name: str, folder, **changes) -> None:
    """Save a `name` model with random weights, along with the toy's tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm = AutoModelForCausalLM.from_config(small_config(name, **changes))
        for parameter in lm.parameters():  # including biases, which start at 0
            parameter.data += 0.15 * torch.randn_like(parameter)
    lm.save_pretrained(folder)
    toy.build_tokenizer().save_pretrained(folder)


@functools.cache
def random_ids(length: int, seed: int = 0) -> torch.Tensor:
    """Random ids [length], without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (length,), generator=generator)
