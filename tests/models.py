"""Tiny random models of many architectures, and changes to the files of a model's folder."""

import json

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

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
WINDOW = {"sliding_window": 8}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
GEMMA = ALTERNATING | {"query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0}
SCALES = {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4, "num_experts": 4}

# Dropout is on in every architecture that has it, so the tests detect code that leaves it on.
EXACT = {
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
REFUSED = {"bert": {"is_decoder": True}, "mamba": {}, "qwen3_5_text": {}}


def save_random_model(name: str, folder, **changes) -> None:
    """Save a `name` model with random weights, along with the toy's tokenizer."""
    config = CONFIG_MAPPING[name](**(SMALL | (EXACT | REFUSED)[name] | changes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm = AutoModelForCausalLM.from_config(config)
        for parameter in lm.parameters():  # including biases, which start at 0
            parameter.data += 0.15 * torch.randn_like(parameter)
    lm.save_pretrained(folder)
    toy.build_tokenizer().save_pretrained(folder)


def byte_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """A tokenizer for any text: a token per byte, and special ones; the end token is <end>."""
    alphabet = sorted(ByteLevel.alphabet())
    tokens = {token: i for i, token in enumerate([*alphabet, "<end>"])}
    words = Tokenizer(BPE(tokens, []))
    words.pre_tokenizer, words.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", **special)


def save_byte_tokenizer(folder) -> None:
    """Save it, with 257 tokens in all."""
    byte_tokenizer().save_pretrained(folder)


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
