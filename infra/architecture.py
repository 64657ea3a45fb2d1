"""Requirements on a model that its config and modules can show.

infra/agreement.py measures at every load whether the results are right. Models refused here would
fail later with a traceback, full memory or a misleading message.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache, GenerationConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from infra.errors import UserError

# Cache layers that hold only keys and values, like infra/cache.py.
KEYS_AND_VALUES = (DynamicLayer, DynamicSlidingWindowLayer)


def refuse_config(name: str | Path, config) -> None:
    """Raise UserError for an architecture that cannot be trained or sampled here."""
    kind = config.model_type
    if config.get_text_config() is not config:
        raise UserError(
            f"--model {name}: {kind} wraps a language model for images or sound: pass a text model"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or config.is_encoder_decoder:
        raise UserError(f"--model {name}: {kind} is not a causal language model")
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(f"--model {name}: its weights are quantised: pass the original model")

    for layer in DynamicCache(config=config).layers:
        if type(layer) not in KEYS_AND_VALUES:
            raise UserError(
                f"--model {name}: {kind} keeps more of the past than keys and values in each layer "
                f"({type(layer).__name__}), but the sampler does not: pass a plain transformer"
            )


def refuse_model(name: str | Path, lm: torch.nn.Module) -> None:
    """Raise UserError for a model without the parts of a causal transformer."""
    lacks = None
    if lm.base_model is lm or not takes(lm.base_model, "past_key_values"):
        lacks = "body of its own that takes a cache of keys and values"
    elif not isinstance(lm.get_output_embeddings(), torch.nn.Linear):
        lacks = "matrix as its head"
    elif decoder_layers(lm) is None:
        lacks = "list of layers"
    if lacks:
        raise UserError(
            f"--model {name}: {type(lm).__name__} has no {lacks}: pass a plain transformer"
        )


def takes(module: torch.nn.Module, argument: str) -> bool:
    """Whether the module's forward has this argument."""
    return argument in inspect.signature(type(module).forward).parameters


def takes_keywords(module: torch.nn.Module) -> bool:
    """Whether the module's forward has **kwargs."""
    parameters = inspect.signature(type(module).forward).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def head_size(config) -> int:
    """The size of a query in one head."""
    own = getattr(config, "head_dim", None)
    return own or config.hidden_size // config.num_attention_heads


def attention_equals_rest(lm: torch.nn.Module) -> float:
    """The sequence length at which causal attention costs as much as all else: P / (L q).

    In a sequence of T tokens, a token takes 2 P operations for the P parameters in matrix products,
    and 2 L q T for L layers of attention over q = heads x head size to T / 2 tokens on average.
    51,000 for Qwen3-8B. The savings of a sliding window are not counted.
    """
    config = lm.config
    multiplying = count_parameters(lm)
    if lm.get_input_embeddings().weight is not lm.get_output_embeddings().weight:
        multiplying -= lm.get_input_embeddings().weight.numel()  # only looked up
    q = config.num_attention_heads * head_size(config)
    return multiplying / (config.num_hidden_layers * q)


def decoder_layers(lm: torch.nn.Module) -> torch.nn.ModuleList | None:
    """The body's layers: the module list with the most parameters, or None without lists."""
    lists = [part for part in lm.base_model.modules() if isinstance(part, torch.nn.ModuleList)]
    return max(lists, key=count_parameters, default=None)


def count_parameters(module: torch.nn.Module) -> int:
    """The number of parameters of a module; tied parameters count once."""
    return sum(p.numel() for p in module.parameters())


def without_dropout(config):
    """Set every dropout rate to 0: with dropout the ratio would not be 1 at θ_old.

    Architectures name it `attention_dropout`, `resid_pdrop`, `hidden_dropout_prob`, `layerdrop`.
    """
    for key, value in vars(config).items():
        if "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
    return config


@contextmanager
def without_generation_config(lm: torch.nn.Module) -> Iterator[None]:
    """Let `lm.generate` use only its arguments; the model's config would change the logits."""
    own = lm.generation_config
    lm.generation_config = GenerationConfig()
    try:
        yield
    finally:
        lm.generation_config = own


def recompute_in_backward(lm: torch.nn.Module, layers: torch.nn.ModuleList) -> None:
    """Activation checkpointing: each layer stores only its input and runs again in backward.

    Raises UserError if the architecture does not support it.
    """
    if not lm.supports_gradient_checkpointing:
        raise UserError(f"{type(lm).__name__} cannot recompute its layers: pass --recompute False")
    lm.activation_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        layer.training = True  # transformers checks it; the layer's submodules stay in eval mode


def most_tokens(config) -> int | None:
    """The longest sequence that the positions support; None without a limit."""
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None or limit < 1:
        return None
    scheme = getattr(config, "rope_parameters", None) or {}
    if scheme.get("rope_type") == "longrope":
        # Beyond it, the longest sequence of a batch sets the frequencies of all sequences.
        limit = min(limit, scheme["original_max_position_embeddings"])
    return limit


def refuse_length(config, prompts: list[list[int]], max_new_tokens: int) -> None:
    """Raise UserError if a prompt and its response may exceed the model's positions."""
    limit = most_tokens(config)
    if limit is None:
        return
    longest = max((len(prompt) for prompt in prompts), default=0)
    if longest + max_new_tokens > limit:
        raise UserError(
            f"--max-new-tokens {max_new_tokens} after a prompt of {longest} tokens exceeds the "
            f"{limit} tokens that the positions of this {config.model_type} support: "
            f"lower it to {max(0, limit - longest)}; if a scheme such as yarn extends the "
            "positions, raise max_position_embeddings in config.json"
        )
