"""The model as RL sees it: packed rows, one per response token, on weights sharded over all ranks.

`Policy` wraps any causal language model. Its forward takes whole sequences and returns, for each response token, its
log-probability, the entropy of the distribution it was drawn from and the hidden state that entered the LM head. No other
file of the project touches a mask, a padded position or a part of the wrapped model. `load_policy` shards it (FSDP2): float32
weights, gradients and Adam moments over the ranks, bfloat16 compute on GPUs, float32 on the CPU.

Departures: none; App. L.1 notes that keeping the hidden states of the scoring pass spares DelTA every further pass, and
`score` keeps them.
Shapes: B responses, T tokens of the longest sequence, N packed response tokens, n of them on this rank, H hidden, V vocabulary.
"""
import copy, os
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from huggingface_hub import snapshot_download
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from data import UserError, packed_rows
from grpo import TokenBatch, over_ranks
from rollout import Rollouts


class TokenRows(NamedTuple):
    """Packed rows: the tokens of response 0, then those of response 1, ...; inside a response in reading order."""
    logprob: torch.Tensor  # [N] float32, log π_θ(o_t | q, o_<t) at the sampling temperature, nats
    entropy: torch.Tensor  # [N] float32, entropy of π_θ(. | q, o_<t) at the sampling temperature, nats; NaN where gradients are on
    hidden: torch.Tensor   # [N, H] the hidden state h that enters the LM head; no gradient


class TokenLogprobs(torch.autograd.Function):
    """(log p of `token`, entropy) [N] under softmax(W h / temperature), float32, from hidden [N, H] and head W [V, H].

    Goes through the rows in blocks, forward and again backward, so nothing of size [N, V] exists: at V = 151,936 one response of
    20,000 tokens would take 12 GB. Logits are float32: in bfloat16 they cost up to 0.06 nats.
    """

    @staticmethod
    def forward(ctx, hidden, head, token, temperature, entropies):
        ctx.save_for_backward(hidden, head, token)
        ctx.temperature = temperature
        logprob, entropy = torch.full((2, len(token)), torch.nan, device=hidden.device)
        for rows, logp in TokenLogprobs.blocks(hidden, head, temperature):
            logprob[rows] = logp.gather(1, token[rows, None]).squeeze(1)
            if entropies: entropy[rows] = -(logp.exp() * logp).nan_to_num_().sum(dim=1)  # 0 log 0 = 0
            del logp  # before the next block is made
        ctx.mark_non_differentiable(entropy)
        return logprob, entropy

    @staticmethod
    def backward(ctx, grad, _):
        hidden, head, token = ctx.saved_tensors
        grad_hidden, grad_head = torch.empty_like(hidden), torch.zeros_like(head, dtype=torch.float32)
        for rows, d in TokenLogprobs.blocks(hidden, head, ctx.temperature):
            d.exp_().mul_(-grad[rows, None] / ctx.temperature)  # (e_y - p) ∂L/∂log p / temperature
            d.scatter_add_(1, token[rows, None], grad[rows, None] / ctx.temperature)
            grad_hidden[rows] = d.to(head.dtype) @ head
            grad_head += product(d.to(hidden.dtype).T, hidden[rows])
            del d
        return grad_hidden, grad_head.to(head.dtype), None, None, None

    @staticmethod
    def blocks(hidden, head, temperature):
        """(slice, log p [rows, V]) over blocks of 2^26 numbers."""
        for start in range(0, len(hidden), size := max(1, 2**26 // len(head))):
            rows = slice(start, start + size)
            yield rows, product(hidden[rows], head.T).div_(temperature).log_softmax(dim=-1)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b accumulated and returned in float32."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda and a.dtype != torch.float32 else (a @ b).float()


class Policy(torch.nn.Module):
    """A causal language model `lm` with the temperature that serves both sampling and log-probabilities."""

    def __init__(self, lm: torch.nn.Module, temperature: float = 1.0):
        super().__init__()
        self.lm, self.temperature, self.twin = lm, temperature, []  # twin: the same model without shards or hooks, see `plain`

    def forward(self, ids: torch.Tensor, prompt_length: torch.Tensor, response_length: torch.Tensor) -> TokenRows:
        """Packed rows of the response tokens.

        ids [B, T]: prompt, then response, then anything up to T. Sequences start at column 0, so causal attention alone
        keeps the padding on the right out of every real token and no mask is needed. Lengths [B] count tokens.
        """
        columns = torch.arange(ids.shape[1], device=ids.device)
        end = prompt_length + response_length
        response = (columns >= prompt_length[:, None]) & (columns < end[:, None])  # [B, T] true on response tokens
        states = self.lm.base_model(input_ids=ids, use_cache=False).last_hidden_state  # [B, T, H]
        hidden = states[:, :-1][response[:, 1:]]  # [N, H] the state at t-1 predicts the token at t
        head = self.lm.get_output_embeddings().weight
        # entropies cost a tenth of an update at a large vocabulary, and nothing there reads them
        return TokenRows(*TokenLogprobs.apply(hidden, head, ids[response], self.temperature, not torch.is_grad_enabled()), hidden.detach())

    def rows(self, rollouts: Rollouts, index: torch.Tensor) -> TokenRows:
        """Forward for responses `index` of a rollout batch, cut to the longest of them.

        For none of them a forward over two tokens that gives no rows: ranks gather each other's shards, so all must go along.
        """
        if not len(index): return self(rollouts.ids[:1, :2], index.new_tensor([2]), index.new_tensor([0]))
        prompt, response = rollouts.prompt_length[index], rollouts.response_length[index]
        return self(rollouts.ids[index, :int((prompt + response).max())], prompt, response)

    @contextmanager
    def plain(self):
        """The model for `generate`: a twin without hooks whose weights are the gathered ones, uncopied. All ranks enter together."""
        shards = [module for module in self.modules() if isinstance(module, FSDPModule)]
        for module in shards: module.unshard()
        for twin in self.twin:
            for plain, sharded in zip(twin.modules(), self.lm.modules(), strict=True):
                plain._parameters, plain._buffers = dict(sharded._parameters), dict(sharded._buffers)
        try:
            yield self.twin[0] if self.twin else self.lm
        finally:
            for module in shards: module.reshard()


def whole(x: torch.Tensor) -> torch.Tensor:
    """The full tensor of a sharded one; all ranks call together."""
    return x.full_tensor() if isinstance(x, DTensor) else x


@torch.no_grad()
def score(policy: Policy, rollouts: Rollouts, advantages: torch.Tensor, plan: list[list], budget_gb: float = 8.0) -> TokenBatch:
    """One forward pass over all responses: old log-probabilities, entropies and the hidden states DelTA uses, packed.

    Each rank scores the responses of its `plan`. Hidden states stay with it, on GPUs in bfloat16: in its memory if they take
    at most budget_gb, else in pinned host memory.
    """
    length, device, H = rollouts.response_length, rollouts.ids.device, policy.lm.config.hidden_size
    mine = packed_rows(torch.cat([index for mini_batch in plan for index, _ in mini_batch]).sort().values, length)
    logprob, entropy = torch.zeros(2, int(length.sum()), device=device)
    dtype, pinned = (torch.bfloat16, 2 * H * len(mine) > budget_gb * 1e9) if device.type == "cuda" else (torch.float32, False)
    hidden = torch.empty(len(mine), H, dtype=dtype, device="cpu" if pinned else device, pin_memory=pinned)
    for index, _ in (group for mini_batch in plan for group in mini_batch):
        rows, out = packed_rows(index, length), policy.rows(rollouts, index)
        logprob[rows], entropy[rows] = out.logprob, out.entropy
        hidden[torch.searchsorted(mine, rows).to(hidden.device)] = out.hidden.to(hidden)
    head = lambda: whole(policy.lm.get_output_embeddings().weight.detach()) / policy.temperature
    ids = torch.cat([rollouts.response_ids(i) for i in range(len(length))])
    logprob, entropy = over_ranks(logprob), over_ranks(entropy)  # 0 where another rank's, so a sum puts them together
    return TokenBatch(advantages.repeat_interleave(length), logprob, entropy, hidden, length, ids, mine, head, current=logprob)  # θ is θ_old


# ---- loading and sharding --------------------------------------------------------------------------------------------


def this_device() -> torch.device:
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")


def start_ranks() -> tuple[int, int]:
    """(rank, world size); without torchrun a world of one rank, so that one path serves all."""
    if not dist.is_initialized():
        store, rank, world = next(dist.rendezvous("env://")) if "RANK" in os.environ else (dist.HashStore(), 0, 1)
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)  # a restart must not meet dead ranks' addresses
        if torch.cuda.is_available(): torch.cuda.set_device(this_device())
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", store=store, rank=rank, world_size=world,
                                timeout=timedelta(days=7))  # ranks may finish hours apart
    return dist.get_rank(), dist.get_world_size()


def locate(name: str | Path) -> tuple:
    """(folder, config, tokenizer) of a Hugging Face folder, or of a hub id. Raises UserError."""
    try:
        wanted = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]  # downloaded by one rank of a node while the others wait
        folder = Path(name) if Path(name).is_dir() else Path(snapshot_download(str(name), allow_patterns=wanted))
        return folder, AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"--model {name}: no model in such a folder, nor on the hub as far as it can be reached ({str(error).splitlines()[0]}); "
                        "with no network, pass a folder (elsewhere: hf download ID --local-dir FOLDER)") from error


def load_model(name: str, dtype: torch.dtype = torch.float32) -> tuple:
    """(model, tokenizer), whole, on the GPU if there is one: for evaluation. Raises UserError."""
    folder, _, tokenizer = locate(name)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(this_device()).eval(), tokenizer


def device_mesh() -> DeviceMesh:
    """All ranks in one row; with several nodes a row each: shards lie inside a node and are replicated across (HSDP)."""
    world, local = dist.get_world_size(), int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    if world == local: return init_device_mesh(this_device().type, (world,))
    return init_device_mesh(this_device().type, (world // local, local), mesh_dim_names=("replicate", "shard"))


def shard(policy: Policy, mesh: DeviceMesh, bf16: bool) -> None:
    """FSDP2: a unit per decoder layer, the rest (embedding, norm, LM head) with the root. Gradients are averaged over ranks."""
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    for module in (*policy.lm.base_model.layers, policy): fully_shard(module, mesh=mesh, mp_policy=precision)


def load_policy(name: str, temperature: float = 1.0, recompute: bool = True) -> tuple:
    """(sharded Policy, tokenizer): built on meta, then every rank reads its slices of the safetensors and nothing else.

    recompute: activation checkpointing per layer. Dropout is off, for the ratio would not be 1 with it. Raises UserError.
    """
    folder, config, tokenizer = locate(name)
    config.attention_dropout = 0.0
    with torch.device("meta"): lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if (folder / "generation_config.json").exists(): lm.generation_config = GenerationConfig.from_pretrained(folder)
    policy = Policy(lm, temperature)
    policy.twin = [copy.deepcopy(lm)]
    if recompute:
        lm.activation_checkpointing_enable({"use_reentrant": False})
        lm.base_model.layers.train()  # transformers checkpoints layers in training mode only
    shard(policy, device_mesh(), bf16=this_device().type == "cuda")
    policy.to_empty(device=this_device())
    lm.tie_weights()
    for module in lm.modules():
        if hasattr(module, "inv_freq"):  # rotary buffers are in no file
            module._buffers |= type(module)(config).to(this_device())._buffers
    weights = {name.removeprefix("lm."): x for name, x in get_model_state_dict(policy).items()}
    if config.tie_word_embeddings: del weights["lm_head.weight"]
    try:
        dcp.load(weights, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    except (dcp.api.CheckpointException, OSError, ValueError) as error:
        raise UserError(f"--model {folder}: its safetensors do not fit its config.json ({str(error).splitlines()[-1]})") from error
    ids = torch.zeros(1, 2, dtype=torch.long, device=this_device())
    with torch.no_grad():
        policy(ids, ids[0, :1] + 1, ids[0, :1] + 1)  # FSDP finds its root in the first forward; `plain` must not come before
    policy.reshard()  # else an optimiser made now would hold the gathered parameters, and training would do nothing
    return policy, tokenizer
