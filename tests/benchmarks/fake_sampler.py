"""Live bytes in rollout.generate for a Qwen3 model in bfloat16, for test_plan.py.

Tensors are fake, and every storage is counted to the byte while it is alive. Token ids are real, so
`generate` and the sampler run unchanged. Attention and the LM head's matmul are treated as GPU
kernels that allocate only their output.
"""

import weakref
from functools import partial
from unittest.mock import patch

import numpy as np
import torch
from infra.head import give_float32_head
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import AutoModelForCausalLM, Qwen3Config

import rollout
from benchmarks.plan import qwen3
from benchmarks.scripted import Given
from infra import head as head_module

END = 1
ENDS_HERE = 2.0  # replaces the uniform draw for the last token


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of every storage from its allocation until it is freed."""

    def __init__(self):
        super().__init__()
        self.known = set()
        self.now = self.peak = 0

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        result = operation(*arguments, **(options or {}))
        for each in tree_leaves(result):
            if isinstance(each, FakeTensor):
                self.note(each.untyped_storage())
        return result

    def note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known:
            return
        self.known.add(key)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.forget, key, storage.nbytes())

    def forget(self, key: int, count: int) -> None:
        self.known.remove(key)
        self.now -= count


class Model:
    """A model with fake tensors that takes real token ids as input."""

    def __init__(self, config):
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.live = LiveBytes()
        with torch.device("meta"):
            self.lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        give_float32_head(self.lm)
        for module in self.lm.modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = self.fake_one(tensor)
        for module in (self.lm, self.lm.base_model):
            module.forward = partial(self.forward, module.forward)

    def fake_one(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor like `tensor`, which is on the meta device; parameters stay parameters."""
        with self.fake:
            fake = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.live.known.add(fake.untyped_storage()._cdata)  # weights are not counted
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(fake, requires_grad=False)
        return fake

    def forward(self, forward, **inputs):
        mask = inputs["attention_mask"]
        if mask is not None and not isinstance(mask, FakeTensor) and mask.all():
            inputs["attention_mask"] = None  # the model would drop it, but cannot read a fake mask
        # The counter sits above the fake mode on the mode stack, so it sees the fake allocations.
        with self.fake, self.live:
            return forward(**tree_map_only(torch.Tensor, self.made_fake, inputs))

    def made_fake(self, x: torch.Tensor) -> torch.Tensor:
        return x if isinstance(x, FakeTensor) else self.fake.from_tensor(x)


def fused_attention(query, key, value, attn_mask=None, **_) -> torch.Tensor:
    """Replaces torch's scaled_dot_product_attention."""
    return query.new_empty(*query.shape[:-1], value.shape[-1])


class Draw(rollout.InverseCDF):
    """Samples with fake tensors to count the memory, but returns token 0, or END where scripted."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        super().__call__(input_ids, scores)
        self.finite = True
        self.logprobs[-1] = torch.zeros(len(scores))
        t = input_ids.shape[1] - self.prompt_width
        ends = self.uniforms[:, t] > 1
        return torch.stack([~ends, ends], dim=1).float()  # [R, 2]: the argmax is 0 or END


def float32_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Replaces infra.head.product."""
    return a.new_empty(len(a), b.shape[1], dtype=torch.float32)


def script(length: int, longest: int) -> np.ndarray:
    numbers = np.full(longest, 0.5)
    if length < longest:
        numbers[length - 1] = ENDS_HERE
    return numbers


def first_layers(size: str, layers: int) -> Qwen3Config:
    """The config of a Qwen3 model with fewer layers: each layer costs a second on fake tensors."""
    changed = {"num_hidden_layers": layers, "layer_types": None}
    return Qwen3Config(**(qwen3(size).to_dict() | changed))


def live_bytes(
    config: Qwen3Config, rows: int, prompt: int, new: int, cache_tokens: int
) -> tuple[int, int]:
    """Peak bytes without the weights, and bytes that remain afterwards.

    Samples 2 x `rows` responses of `new` tokens to prompts of `prompt` tokens; every other response
    is half as long.
    """
    model = Model(config)
    jobs = [rollout.Job([i + 2] * prompt, (0, 0, i, 0)) for i in range(2 * rows)]

    def numbers(seed: int, step: int, problem: int, sample: int) -> Given:
        return Given(script(new if problem % 2 else new // 2, new))

    fused = patch("torch.nn.functional.scaled_dot_product_attention", fused_attention)
    head = patch.object(head_module, "product", float32_product)
    short = patch.object(rollout, "CHUNK", 2)
    scripted = patch.object(rollout, "random_numbers", numbers)
    with fused, head, short, scripted, patch.object(rollout, "InverseCDF", Draw), model.live:
        sampling = rollout.Sampling(new, in_flight=rows, cache_tokens=cache_tokens)
        rollout.generate(model.lm, jobs, [END], sampling)
    return model.live.peak, model.live.now
