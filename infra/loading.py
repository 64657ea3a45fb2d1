"""Without this file a model with an unusual part would silently be trained as another model.

Such a part is an unknown scale in the head, dropout, or a cache that a layer cannot use. So three
short sequences run through `from_pretrained`'s model, the policy, and `generate` with the sampler's
cache. If their log-probabilities differ by more than rounding, the model is refused. The check
cannot detect a difference beyond the longest of LENGTHS (a sliding window, a rotary scheme for long
sequences) or below the tolerance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.tensor import distribute_tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, GenerationConfig

from infra.errors import UserError, one_line
from infra.head import use_our_products
from infra.model_files import from_files, locate, refuse_unsavable
from infra.onednn import packed_weights
from infra.ranks import on_first_rank, rank_and_world, this_device
from infra.sampler import Batch
from infra.tokens import end_tokens

LENGTHS = (48, 29, 9)  # tokens of the checked sequences; the longest prompt, of 40, is shared
LAST = 8  # the last tokens of each are compared; the sampler is forced to choose them

# The largest mean difference of log-probabilities that counts as rounding, nats. Random models of 4
# to 64 layers gave at most 1.1e-5 in float32 and 0.14 in bfloat16 (0.05 with 28 layers), on a CPU.
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.3}


@dataclass
class Published:
    """A model as published, in float32. All ranks have all of it but the weights."""

    name: str | Path
    tokenizer: object
    config: object  # of its language model
    generation_config: object
    buffers: dict[str, torch.Tensor]  # some, such as rotary frequencies, are in no file
    logprobs: torch.Tensor  # reference_logprobs, for both checks
    lm: torch.nn.Module | None = None  # on the first rank: the language model inside

    def without_weights(self) -> torch.nn.Module:
        """Its language model on the meta device, with our linear layers. It has no dropout."""
        with torch.device("meta"):
            lm = AutoModelForCausalLM.from_config(
                self.config, dtype=torch.float32, trust_remote_code=False
            )
        lm.generation_config = self.generation_config
        use_our_products(lm)
        return lm.eval()  # with dropout the ratio would not be 1 at θ_old

    @torch.no_grad()
    def give_slices(self, lm: torch.nn.Module) -> None:
        """Give every rank its slices of the weights, tensor by tensor, and all buffers.

        lm: sharded, on the meta device. Call this once: it frees the first rank's copy (8B: 33 GB).
        """
        lm.to_empty(device=this_device())
        for key, parameter in lm.named_parameters():
            full = torch.empty(parameter.shape, device=this_device())
            if self.lm is not None:
                full.copy_(self.lm.get_parameter(key))
            parameter.copy_(distribute_tensor(full, parameter.device_mesh, parameter.placements))
        for key, buffer in lm.named_buffers():
            buffer.copy_(self.buffers[key])
        self.lm = None

    def check(self, policy, dtype: torch.dtype) -> None:
        """Refuse a train.Policy that is trained or sampled differently. All ranks call this.

        Training is first, because FSDP finds its root in its first forward pass. That pass leaves
        the root unsharded. Leaving `unsharded` shards it again: the optimiser must be made on
        shards. Raises UserError.
        """
        found = trained_logprobs(self.name, policy.lm, lambda lm, *batch: [policy(*batch).logprob])
        refuse_difference(self.name, "training", found, self.logprobs, dtype)
        with policy.unsharded() as lm:
            found = sampler_logprobs(self.name, lm)
        refuse_difference(self.name, "sampling", found, self.logprobs, dtype)


def published_model(name: str | Path) -> Published:
    """Read a model's files: a folder or hub id. Only the first rank reads its weights.

    All ranks call this. Raises UserError.
    """
    folder, _, tokenizer = locate(name)
    weights = []  # only on the first rank, since what `read` returns is sent to all

    def read() -> tuple:
        whole, lm = from_files(name, folder, torch.float32)  # rounds no weight
        refuse_unsavable(name, lm, tokenizer)
        weights.append(lm)
        buffers = dict(lm.named_buffers())
        return lm.config, lm.generation_config, buffers, reference_logprobs(name, whole)

    return Published(name, tokenizer, *on_first_rank(read), *weights)


def load_model(
    name: str | Path, dtype: torch.dtype = torch.float32, outputs: Callable | None = None
) -> tuple:
    """(full model in `dtype` with float32 logits, tokenizer), not sharded. All ranks call this.

    outputs: the function of a trainer, as in `trained_logprobs`, which is then checked, too. For it
    only the end tokens stay of the generation config: a penalty would change π. Raises UserError.
    """
    folder, _, tokenizer = locate(name)
    whole, lm = from_files(name, folder, dtype)
    expected = reference_logprobs(name, whole)
    lm = lm.to(this_device())
    use_our_products(lm)  # like train.py's sampler
    refuse_difference(name, "sampling", sampler_logprobs(name, lm), expected, dtype)
    if outputs:
        found = trained_logprobs(name, lm, outputs)
        refuse_difference(name, "training", found, expected, computation_dtype())
        ends = end_tokens(lm, tokenizer)
        lm.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[0])
    return lm, tokenizer


def decoder_of(lm: torch.nn.Module) -> torch.nn.Module:
    """The layers below the head. The base_model of Llama4ForCausalLM is that model itself."""
    return lm.model if lm.base_model is lm else lm.base_model


def decoder_layers(lm: torch.nn.Module) -> torch.nn.ModuleList:
    """The body's layers: the module list with the most parameters."""
    lists = [part for part in decoder_of(lm).modules() if isinstance(part, torch.nn.ModuleList)]
    return max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()))


def computation_dtype(flag: str = "auto") -> torch.dtype:
    """The dtype in which models compute; weights, gradients and moments are in float32.

    flag: one of DTYPES. auto is bfloat16 on GPUs that have it, else float32.
    """
    if flag != "auto":
        return getattr(torch, flag)
    on_cpu = this_device().type == "cpu"
    if on_cpu or not torch.cuda.is_bf16_supported(including_emulation=False):  # such as a T4
        return torch.float32
    return torch.bfloat16


def autocast() -> torch.autocast:
    """A context for the layers of a float32 model, which then compute in `computation_dtype`."""
    dtype = computation_dtype()
    return torch.autocast(this_device().type, dtype, enabled=dtype == torch.bfloat16)


# ---- the check -----------------------------------------------------------------------------------


def random_sequences(vocabulary: int) -> list[torch.Tensor]:
    """Fixed random sequences of LENGTHS tokens."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=generator) for length in LENGTHS]


def logprobs_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log p of tokens [n] under the logits [n, V] that predict them: [n] float32, on the host."""
    return logits.float().cpu().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)


@torch.no_grad()
def reference_logprobs(name: str | Path, lm: torch.nn.Module) -> torch.Tensor:
    """log p from the model's own forward pass, without padding or cache: [3, LAST].

    lm: from_pretrained's model, with any parts for images. It is on the CPU, so that a model that
    fits on GPUs only in shards is checked too. Raises UserError if it does not run.
    """
    logprobs = []
    with one_line(name, "its architecture does not run with its config.json"):
        for sequence in random_sequences(lm.config.get_text_config().vocab_size):
            logits = lm(sequence[None, :-1], use_cache=False).logits[0, -LAST:]
            logprobs.append(logprobs_of(logits, sequence[-LAST:]))
    return torch.stack(logprobs)


@torch.no_grad()
def trained_logprobs(name: str | Path, lm: torch.nn.Module, outputs: Callable) -> torch.Tensor:
    """log p from a trainer, in padded batches: [3, 3, LAST]. All ranks call this.

    outputs: (lm, ids [b, L], is_token [b, L]) -> (log p of the n tokens, ...). The second batch has
    each sequence twice, so that their prompts run once.
    """
    ids = pad_sequence(random_sequences(lm.config.vocab_size), batch_first=True)
    column, length = torch.arange(ids.shape[1]), torch.tensor(LENGTHS)[:, None]
    is_token = (length - LAST <= column) & (column < length)
    ids, is_token = ids.to(this_device()), is_token.to(this_device())
    with one_line(name, "its architecture cannot be trained here"):
        batches = [outputs(lm, ids.repeat(n, 1), is_token.repeat(n, 1))[0] for n in (1, 2)]
        return torch.cat(batches).view(-1, len(LENGTHS), LAST).cpu()


@torch.no_grad()
def sampler_logprobs(name: str | Path, lm) -> torch.Tensor:
    """log p from the sampler, with a cache and padding: [1, 3, LAST]. All ranks call this.

    On a GPU [2, 3, LAST]: by `generate`, and by a recording (infra/cuda_graph.py).
    """
    sequences = random_sequences(lm.config.vocab_size)
    tokens = torch.stack([sequence[-LAST:] for sequence in sequences])  # [3, LAST]
    logprobs = []
    for record in (False, True) if lm.device.type == "cuda" else (False,):
        with packed_weights(lm), one_line(name, "it cannot be sampled with a cache between chunks"):
            batch = Batch(lm, [sequence[:-LAST] for sequence in sequences])
            _, found = batch.next_tokens(forced_draw, tokens, record=record)
        logprobs.append(found)
    return torch.stack(logprobs)


def forced_draw(logits: torch.Tensor, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(token, its log p), [m, 1] each: a `draw` for sampler.Batch.next_tokens without a choice."""
    return token, logits.float().log_softmax(-1).gather(1, token)


def refuse_difference(
    name: str | Path,
    where: str,
    logprobs: torch.Tensor,
    expected: torch.Tensor,
    dtype: torch.dtype,
) -> None:
    """Raise UserError, on all ranks, if `logprobs` differ from `expected` by more than rounding."""
    apart = (logprobs - expected).abs().mean().nan_to_num(nan=torch.inf)
    if rank_and_world()[1] > 1:
        dist.all_reduce(apart, dist.ReduceOp.MAX)
    bound = BOUNDS[dtype]
    if apart > bound:
        raise UserError(
            f"--model {name}: log-probabilities in {where} differ by {apart:.2g} nats from "
            f"from_pretrained's (rounding: up to {bound:g}): its architecture has an unknown part "
            "or its weights are damaged, so it cannot be used here"
        )
