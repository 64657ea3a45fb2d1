"""What a model must be to be trained here, as far as its config and its modules tell.

Whether its numbers are right is no matter of names: infra/agreement.py measures that at every load.
What is refused here would end in a traceback, in memory that runs full or in an untrue message.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache, GenerationConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from infra.errors import UserError

# Layers of whose past nothing is needed but keys and values, as infra/cache.py holds them.
KEYS_AND_VALUES = (DynamicLayer, DynamicSlidingWindowLayer)


def refuse_config(name: str | Path, config) -> None:
    """Raise UserError for an architecture that cannot be trained or sampled here."""
    kind = config.model_type
    if config.get_text_config() is not config:
        raise UserError(
            f"--model {name}: {kind} wraps a language model for images or sound: pass one of text"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or config.is_encoder_decoder:
        raise UserError(f"--model {name}: {kind} is no causal language model")
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(f"--model {name}: its weights are quantised: pass the original model")

    for layer in DynamicCache(config=config).layers:
        if type(layer) not in KEYS_AND_VALUES:
            raise UserError(
                f"--model {name}: {kind} keeps more of the past than keys and values in each layer "
                f"({type(layer).__name__}), and the sampler cannot: pass a plain transformer"
            )


def refuse_model(name: str | Path, lm: torch.nn.Module) -> None:
    """Raise UserError for a model whose parts are not where a causal transformer has them."""
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
    """Whether the module's forward has an argument of that name."""
    return argument in inspect.signature(type(module).forward).parameters


def takes_keywords(module: torch.nn.Module) -> bool:
    """Whether the module's forward takes keyword arguments that it does not name."""
    parameters = inspect.signature(type(module).forward).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def head_size(config) -> int:
    """Numbers of a query in one head."""
    own = getattr(config, "head_dim", None)
    return own or config.hidden_size // config.num_attention_heads


def attention_equals_rest(lm: torch.nn.Module) -> float:
    """Tokens of a sequence at which causal attention costs as much as all else: P / (L q).

    A token of T takes 2 P operations of the P parameters that multiply, and 2 L q T of L layers of
    attention over q = heads x head size, in which it meets half of the T tokens. 51,000 for
    Qwen3-8B. A sliding window, which costs less, is not counted.
    """
    config = lm.config
    multiplying = count_parameters(lm)
    if lm.get_input_embeddings().weight is not lm.get_output_embeddings().weight:
        multiplying -= lm.get_input_embeddings().weight.numel()  # a table, to be looked up in
    q = config.num_attention_heads * head_size(config)
    return multiplying / (config.num_hidden_layers * q)


def decoder_layers(lm: torch.nn.Module) -> torch.nn.ModuleList | None:
    """The body's layers: of its module lists the one with the most parameters; None without one."""
    lists = [part for part in lm.base_model.modules() if isinstance(part, torch.nn.ModuleList)]
    return max(lists, key=count_parameters, default=None)


def count_parameters(module: torch.nn.Module) -> int:
    """Parameters of a module; tied ones once."""
    return sum(p.numel() for p in module.parameters())


def without_dropout(config):
    """Set every rate of dropout to 0: with dropout the ratio would not be 1 at θ_old.

    Architectures name them `attention_dropout`, `resid_pdrop`, `hidden_dropout_prob`, `layerdrop`.
    """
    for key, value in vars(config).items():
        if "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
    return config


@contextmanager
def without_generation_config(lm: torch.nn.Module) -> Iterator[None]:
    """`lm.generate` does as its arguments say; the model's own config would change the logits."""
    own = lm.generation_config
    lm.generation_config = GenerationConfig()
    try:
        yield
    finally:
        lm.generation_config = own


def recompute_in_backward(lm: torch.nn.Module, layers: torch.nn.ModuleList) -> None:
    """Activation checkpointing: each layer keeps its input only, and is run again in backward.

    Raises UserError where the architecture has none.
    """
    if not lm.supports_gradient_checkpointing:
        raise UserError(f"{type(lm).__name__} cannot recompute its layers: pass --recompute False")
    lm.activation_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        layer.training = True  # transformers asks for it; the parts of the layer stay in eval mode


def most_tokens(config) -> int | None:
    """The longest sequence for which the positions are made; None without a limit."""
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None or limit < 1:
        return None
    scheme = getattr(config, "rope_parameters", None) or {}
    if scheme.get("rope_type") == "longrope":
        # Beyond it the longest sequence of a batch chooses the frequencies for all of them.
        limit = min(limit, scheme["original_max_position_embeddings"])
    return limit


def refuse_length(config, prompts: list[list[int]], max_new_tokens: int) -> None:
    """Raise UserError where a prompt and its response may outgrow the model's positions."""
    limit = most_tokens(config)
    if limit is None:
        return
    longest = max((len(prompt) for prompt in prompts), default=0)
    if longest + max_new_tokens > limit:
        raise UserError(
            f"--max-new-tokens {max_new_tokens} after a prompt of {longest} tokens exceeds the "
            f"{limit} tokens for which the positions of this {config.model_type} are made: "
            f"lower it to {max(0, limit - longest)}; where a scheme such as yarn extends the "
            "positions, raise max_position_embeddings in config.json"
        )
