"""Loads a model by name, and checks that training and sampling agree with `from_pretrained`.

`load_model` loads the full model, for evaluation. `load_policy` shards it over all ranks, for
training: float32 weights, gradients and Adam moments, bfloat16 computation on GPUs, float32 on the
CPU.

An unknown scale in the head, dropout, or a cache that a layer cannot use would silently change the
model in training or sampling. So about 50 tokens run through `from_pretrained`'s model, `Policy`,
and `generate` with the sampler's cache. If their log-probabilities differ by more than rounding,
the model is refused. The check cannot detect a difference that starts beyond the longest of LENGTHS
(a sliding window, a rotary scheme for long sequences) or stays below the tolerance, which is wide
in bfloat16.

Shapes: n tokens in the checked sequences, excluding each first token; V vocabulary size.
"""

from functools import partial
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from torch import distributed as dist
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils import logging as hf_logging

from infra.errors import UserError, one_line
from infra.hub import prefer_cache
from infra.ranks import computation_dtype, on_first_rank, rank_and_world, shard, this_device
from infra.sampler import Response, next_tokens
from policy import Policy, float32_logits

DOWNLOADED = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
TOKENIZERS = ["tokenizer*", "vocab*", "*.model"]  # a tokenizer has at least one of these files

# Cache layers that hold only keys and values, like infra/sampler.py.
KEYS_AND_VALUES = (DynamicLayer, DynamicSlidingWindowLayer)

LENGTHS = (24, 17, 9)  # of three sequences; shorter sequences are padded
FORCED = 6  # last tokens of each sequence, which the sampler is forced to choose

# The largest mean difference of log-probabilities that counts as rounding, nats.
# Measured: 1e-6 in float32; 0.015 in bfloat16 on a CPU, with random models of 24 layers.
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.1}


def load_model(name: str | Path, dtype: torch.dtype = torch.float32) -> tuple:
    """(full model, tokenizer), on the GPU if there is one. The logits are float32.

    Raises UserError.
    """
    folder, _, tokenizer = locate(name)
    lm = from_files(name, folder, dtype)
    expected = reference_logprobs(name, lm)
    lm = lm.to(this_device())
    give_float32_head(lm)  # like train.py's sampler
    check_sampler(name, lm, expected)
    return lm, tokenizer


def give_float32_head(lm: torch.nn.Module) -> None:
    """Make the model compute float32 logits, as the policy does for its log-probabilities."""
    head = lm.get_output_embeddings()
    head.forward = partial(float32_logits, head)


def decoder_layers(lm: torch.nn.Module) -> torch.nn.ModuleList:
    """The body's layers: the module list with the most parameters."""
    lists = [part for part in lm.base_model.modules() if isinstance(part, torch.nn.ModuleList)]
    return max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()))


def recompute_in_backward(layers: torch.nn.ModuleList) -> None:
    """Activation checkpointing: each layer stores only its input and runs again in backward."""
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def load_policy(name: str | Path, temperature: float = 1.0, recompute: bool = True) -> tuple:
    """(sharded Policy, tokenizer). All ranks call this, and each reads the whole model on its host.

    name: folder or hub id.
    temperature: for sampling and log-probabilities.
    recompute: activation checkpointing per layer.
    Raises UserError, for example if the policy differs from from_pretrained's model.
    """
    folder, config, tokenizer = locate(name)
    lm = from_files(name, folder, torch.float32)  # so no weight is rounded
    expected = on_first_rank(reference_logprobs, name, lm)
    with torch.device("meta"):
        twin = AutoModelForCausalLM.from_config(config).eval()
    twin.generation_config = lm.generation_config
    give_float32_head(twin)

    layers = decoder_layers(lm)
    if recompute:
        recompute_in_backward(layers)
    policy = Policy(lm, twin=twin)
    shard(policy, layers)

    # The first forward pass, which must precede `plain`, also lets FSDP find its root.
    where = f"{type(lm).__name__} as trained here"
    refuse_difference(name, where, policy_logprobs(policy), expected)
    with policy.plain() as sampler:
        check_sampler(name, sampler, expected)
    policy.reshard()  # else an optimiser would hold the gathered parameters and train nothing
    policy.temperature = temperature
    return policy, tokenizer


# ---- files ---------------------------------------------------------------------------------------


def locate(name: str | Path) -> tuple:
    """(folder, config, tokenizer) of a model, given its folder or hub id. Reads no weights.

    Raises UserError.
    """
    # Keep progress bars and load reports out of the output; `from_files` raises load problems.
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()

    folder = Path(name)
    if not folder.is_dir():
        trouble = (
            "no model folder or hub id with this name, or the hub cannot be reached; without a "
            "network, pass a folder (on another machine: hf download ID --local-dir FOLDER)"
        )
        prefer_cache()
        with one_line(name, trouble):
            # One rank of a node downloads while the others wait.
            folder = Path(snapshot_download(str(folder), allow_patterns=DOWNLOADED))
    config = read_config(name, folder)
    if not [path for kind in TOKENIZERS for path in folder.glob(kind)]:
        raise UserError(f"--model {name}: no tokenizer in {folder}")  # else transformers makes one
    with one_line(name, f"cannot read the tokenizer in {folder}"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        words = max(tokenizer.get_vocab().values()) + 1
    if words > config.vocab_size:
        raise UserError(
            f"--model {name}: its tokenizer has {words} ids, its embedding {config.vocab_size}: "
            "use the tokenizer that belongs to the model, or resize the embedding"
        )
    end = getattr(config, "eos_token_id", None)
    if (folder / "generation_config.json").exists():
        with one_line(name, f"cannot read generation_config.json of {folder}"):
            end = GenerationConfig.from_pretrained(folder).eos_token_id
    ends = {tokenizer.eos_token_id, *(end if isinstance(end, list) else [end])} - {None}
    if not ends or not all(isinstance(each, int) for each in ends):
        raise UserError(f"--model {name}: set eos_token_id to the id of an end token, not {end!r}")
    return folder, config, tokenizer


def read_config(name: str | Path, folder: str | Path):
    """The model's config. Raises UserError if the architecture cannot be trained or sampled here.

    The check at load would refuse most such models too, but only after reading their weights.
    """
    with one_line(name, f"cannot read config.json of {folder}"):
        config = AutoConfig.from_pretrained(folder)
    trouble = None
    others = [x for x in DynamicCache(config=config).layers if type(x) not in KEYS_AND_VALUES]
    if config.get_text_config() is not config or config.is_encoder_decoder:
        trouble = "not a plain language model: pass a text model"
    elif getattr(config, "quantization_config", None) is not None:
        trouble = "quantised: pass the original model"
    elif others:
        trouble = f"more than keys and values ({type(others[0]).__name__}): pass a transformer"
    if trouble:
        raise UserError(f"--model {name}: {config.model_type} is or keeps {trouble}")
    return config


def from_files(name: str | Path, folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """from_pretrained's model, on the CPU. Raises UserError if its files do not fit its config."""
    with one_line(name, f"cannot read the weights in {folder}"):
        lm, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # these are reported
            output_loading_info=True,
        )
        decoder_layers(lm)  # raises an error if it has none
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if report[kind]:
            raise UserError(
                f"--model {name}: its safetensors do not fit its config.json: "
                f"{kind.replace('_', ' ')} {sorted(map(str, report[kind]))[0]}"
            )
    if not isinstance(lm.get_output_embeddings(), torch.nn.Linear):
        raise UserError(f"--model {name}: {type(lm).__name__} has no matrix as its head")
    return lm.eval()  # with dropout the ratio would not be 1 at θ_old


# ---- the check -----------------------------------------------------------------------------------


def random_sequences(vocabulary: int) -> list[torch.Tensor]:
    """Fixed random sequences of LENGTHS tokens."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=generator) for length in LENGTHS]


@torch.no_grad()
def reference_logprobs(name: str | Path, lm: torch.nn.Module) -> torch.Tensor:
    """log p from the model's own forward pass, without padding or cache: [n].

    lm: from_pretrained's model, still on the CPU, so even a model that fits on GPUs only in shards
    is checked. Raises UserError if it does not run, or a log p is NaN or infinite.
    """
    logprobs = []
    with one_line(name, "its architecture does not run with its config.json"):
        for sequence in random_sequences(lm.config.vocab_size):
            logits = lm(sequence[None, :-1], use_cache=False).logits[0]
            logprobs.append(logprobs_of(logits, sequence[1:]))
    expected = torch.cat(logprobs)
    if not expected.isfinite().all():
        raise UserError(f"--model {name}: its weights are damaged: they give NaN or infinite log p")
    return expected


def logprobs_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log p of tokens [n] under the logits [n, V] that predict them: [n] float32, on the host."""
    return logits.float().cpu().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)


@torch.no_grad()
def policy_logprobs(policy: Policy) -> torch.Tensor:
    """log p from the policy, in one padded batch: [n], on the host."""
    sequences = random_sequences(policy.lm.config.vocab_size)
    ids = pad_sequence(sequences, batch_first=True).to(this_device())
    column, length = torch.arange(ids.shape[1]), torch.tensor(LENGTHS)
    mask = (column > 0) & (column < length[:, None])  # each first token is the prompt
    return policy(ids, mask.to(ids.device)).logprob.cpu()


@torch.no_grad()
def check_sampler(name: str | Path, lm, expected: torch.Tensor) -> None:
    """Compare log p of each sequence's last FORCED tokens, with cache and padding as in sampling.

    expected: `reference_logprobs` of the same model. All ranks call this.
    """
    sequences = random_sequences(lm.config.vocab_size)
    tokens = torch.stack([sequence[-FORCED:] for sequence in sequences])  # [sequences, FORCED]
    responses = [Response(i, x[:-FORCED], FORCED, None) for i, x in enumerate(sequences)]
    logprobs = []  # [sequences] for each of the FORCED tokens

    def forced(so_far: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        token = tokens[:, len(logprobs)]
        logprobs.append(logprobs_of(logits, token))
        return torch.full_like(logits, -torch.inf).scatter_(1, token[:, None].to(lm.device), 0.0)

    next_tokens(lm, responses, forced, FORCED)
    of_each = expected.split([length - 1 for length in LENGTHS])
    expected = torch.stack([logprob[-FORCED:] for logprob in of_each])
    where = f"{type(lm).__name__} in sampling, with a cache and padding,"
    refuse_difference(name, where, torch.stack(logprobs, dim=1), expected)


def refuse_difference(
    name: str | Path, where: str, logprobs: torch.Tensor, expected: torch.Tensor
) -> None:
    """Raise UserError, on all ranks, if `logprobs` differ from `expected` by more than rounding."""
    apart = (logprobs - expected).abs().mean().nan_to_num(nan=torch.inf)
    if rank_and_world()[1] > 1:
        dist.all_reduce(apart, dist.ReduceOp.MAX)
    bound = BOUNDS[computation_dtype()]
    if apart > bound:
        raise UserError(
            f"--model {name}: log-probabilities of {where} differ by {apart:.2g} nats from "
            f"from_pretrained's (rounding: up to {bound:g}): its architecture has an unknown part, "
            "so it cannot be used here"
        )
