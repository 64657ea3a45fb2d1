"""What a model takes of each GPU at least, counted from its config.

Counted is only what must be there at once, whatever the flags: a run for which a GPU has less room
is refused before anything is loaded. benchmarks/plan.py adds the rest.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed as dist
from transformers import AutoModelForCausalLM, PreTrainedConfig

from infra.architecture import count_parameters, decoder_layers, head_size
from infra.cache import mlp_width
from infra.errors import UserError
from infra.model_files import one_line
from infra.ranks import this_device

HALF = 2  # bytes of a number in the computation on GPUs: bfloat16


@dataclass(frozen=True)
class Sizes:
    """How large the parts of a model are, in numbers (not bytes)."""

    parameters: int  # P
    multiplying: int  # of them, all but an embedding that is only looked up
    layer: int  # parameters of one decoder layer
    layers: int  # L
    hidden: int  # H
    attention: int  # q
    mlp: int  # I
    vocabulary: int  # V

    def always(self, shards: int) -> float:
        """Bytes of a GPU's weights and of Adam's two moments, float32."""
        return 12 * self.parameters / shards

    def least(self, shards: int) -> float:
        """Bytes that a GPU must hold at once in any run.

        While it samples, all weights beside what is there always; at the end of a backward pass,
        its float32 gradients.
        """
        more = max(HALF * self.parameters, 4 * self.parameters / shards)
        return self.always(shards) + more


def sizes_of(config: PreTrainedConfig) -> Sizes:
    """The sizes of a decoder-only model, whose weights are not made."""
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config)
    layers = decoder_layers(lm)
    P = count_parameters(lm)
    embedding = lm.get_input_embeddings().weight
    tied = embedding is lm.get_output_embeddings().weight
    return Sizes(
        parameters=P,
        multiplying=P if tied else P - embedding.numel(),
        layer=count_parameters(layers[0]),
        layers=len(layers),
        hidden=config.hidden_size,
        attention=config.num_attention_heads * head_size(config),
        mlp=mlp_width(config),
        vocabulary=config.vocab_size,
    )


def refuse_too_large(name: str | Path, config: PreTrainedConfig) -> None:
    """Raise UserError if the GPUs of a node cannot hold the model in training, whatever the flags.

    Nothing is loaded.
    """
    shards = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    with one_line(name, "its architecture does not run by its config.json"):
        size = sizes_of(config)
    has = torch.cuda.get_device_properties(this_device()).total_memory
    needs = size.least(shards)
    if needs > has:
        raise UserError(
            f"--model {name}: {size.parameters / 1e9:.2f} billion parameters take at least "
            f"{needs / 1e9:.0f} GB of each of {shards} GPUs, and this one has {has / 1e9:.0f}: "
            "start on more GPUs of a node (python bench.py plan counts for any number)"
        )
