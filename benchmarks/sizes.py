"""The sizes of a model's parts, from its config."""

from dataclasses import dataclass

import torch
from infra.packed_attention import head_size
from transformers import AutoModelForCausalLM, PreTrainedConfig

from loading import decoder_layers

HALF = 2  # bytes per number in the computation on GPUs: bfloat16


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model's parts: counts, not bytes."""

    parameters: int  # P
    multiplying: int  # parameters in matrix products: all but an embedding that is only looked up
    layer: int  # parameters of one decoder layer
    layers: int  # L
    hidden: int  # H
    attention: int  # q
    mlp: int  # I
    vocabulary: int  # V

    def always(self, shards: int) -> float:
        """Bytes of the float32 weights and Adam's two moments on one GPU."""
        return 12 * self.parameters / shards


def sizes_of(config: PreTrainedConfig) -> Sizes:
    """The sizes of a decoder-only model, without allocating its weights."""
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config)
    layers = decoder_layers(lm)
    P = lm.num_parameters()
    embedding = lm.get_input_embeddings().weight
    tied = embedding is lm.get_output_embeddings().weight
    return Sizes(
        parameters=P,
        multiplying=P if tied else P - embedding.numel(),
        layer=sum(p.numel() for p in layers[0].parameters()),
        layers=len(layers),
        hidden=config.hidden_size,
        attention=config.num_attention_heads * head_size(config),
        mlp=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocabulary=config.vocab_size,
    )
