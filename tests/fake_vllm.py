"""A stand-in for the package vllm, with the signatures of vllm 0.30.

It holds a Hugging Face model and samples with rollout.generate, so a training step is real. It
fails where vLLM would read freed memory, and records its calls in order.
"""

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
from infra.head import give_float32_head
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

import rollout
from infra import vllm_engine
from infra.ranks import this_device

TAGS = {"weights", "kv_cache"}
engines = []  # every LLM created


@dataclass
class SamplingParams:
    """The parameters that VLLMEngine sets; the defaults are vLLM's."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = 16
    logprobs: int | None = None
    detokenize: bool = True


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class Model(torch.nn.Module):
    """vLLM's model as seen by apply_model: parameters by name, and load_weights."""

    def __init__(self, folder: str, dtype: torch.dtype, asleep: set[str]):
        super().__init__()
        self.lm = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
        give_float32_head(self.lm.eval().to(this_device()))
        self.asleep = asleep
        self.left_out = None  # a parameter that load_weights reports as not loaded
        self.streamed = []  # (name, dtype) of the weights from the latest load

    def named_parameters(self, *arguments, **named):
        return self.lm.named_parameters(*arguments, **named)

    def load_weights(self, weights) -> set[str]:
        assert "weights" not in self.asleep
        own = dict(self.named_parameters())
        self.streamed = []
        before = None
        for name, tensor in weights:
            assert before is None or before() is None, "two full tensors at a time"
            assert not isinstance(tensor, DTensor)
            assert not tensor.requires_grad
            assert tensor.shape == own[name].shape
            own[name].data.copy_(tensor)
            self.streamed.append((name, tensor.dtype))
            before = weakref.ref(tensor)
            del tensor
        return {name for name, _ in self.streamed} - {self.left_out}


class LLM:
    def __init__(
        self,
        model: str,
        *,
        tensor_parallel_size: int = 1,
        dtype: str | torch.dtype = "auto",
        seed: int = 0,
        gpu_memory_utilization: float = 0.92,
        enable_sleep_mode: bool = False,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        distributed_executor_backend: str | None = None,
        logprobs_mode: str = "raw_logprobs",
    ):
        self.settings = {name: x for name, x in locals().items() if name not in ("self", "model")}
        self.asleep = set()
        self.model = Model(model, dtype, self.asleep)
        self.stale = False  # whether the prefix cache was computed with earlier weights
        self.waiting = []  # (id, prompt, parameters)
        self.finished = []
        self.counter = 0
        self.calls = []
        self.seeds = []
        self.llm_engine = SimpleNamespace(
            has_unfinished_requests=lambda: bool(self.waiting or self.finished), step=self.step
        )
        engines.append(self)

    def sleep(self, level: int = 1, mode: str = "abort"):
        assert self.settings["enable_sleep_mode"]
        self.calls.append(f"sleep {level}")
        self.waiting, self.finished = [], []
        self.asleep |= TAGS
        if level == 2:
            for parameter in self.model.parameters():
                parameter.data.fill_(torch.nan)

    def wake_up(self, tags: list[str] | None = None):
        self.calls.append(f"wake_up {','.join(tags)}")
        self.asleep -= set(tags)

    def apply_model(self, func) -> list:
        self.calls.append(f"apply_model {func.__name__}")
        self.stale = True
        return [func(self.model)]

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        self.calls.append("reset_prefix_cache")
        self.stale = False
        return True

    def enqueue(
        self,
        prompts,
        sampling_params=None,
        lora_request=None,
        priority=None,
        use_tqdm=True,
        tokenization_kwargs=None,
        mm_processor_kwargs=None,
    ) -> list[str]:
        self.calls.append(f"enqueue {len(prompts)}")
        ids = []
        for prompt, parameters in zip(prompts, sampling_params, strict=True):
            assert len(prompt["prompt_token_ids"]) + parameters.max_tokens <= self.longest
            self.waiting.append((str(self.counter), prompt["prompt_token_ids"], parameters))
            ids.append(f"{self.counter}-0123abcd")  # differs from the id in the output, as in vLLM
            self.counter += 1
        return ids

    @property
    def longest(self) -> int:
        return self.settings["max_model_len"]

    def step(self) -> list:
        """Up to three finished requests, latest first."""
        assert not self.asleep
        assert not self.stale
        if self.waiting:
            self.finished = self.answered()
            self.waiting = []
        return [self.finished.pop() for _ in range(min(3, len(self.finished)))]

    def answered(self) -> list:
        ids, prompts, parameters = zip(*self.waiting, strict=True)
        self.seeds += [each.seed for each in parameters]
        one = parameters[0]
        sampling = rollout.Sampling(one.max_tokens, one.temperature, one.top_p)
        jobs = [
            rollout.Job(prompt, (each.seed, 0, 0, 0))
            for prompt, each in zip(prompts, parameters, strict=True)
        ]
        samples = rollout.generate(self.model.lm, jobs, one.stop_token_ids, sampling)
        return [
            SimpleNamespace(request_id=id, finished=True, outputs=[output(*sample)])
            for id, sample in zip(ids, samples, strict=True)
        ]


def output(tokens, logprob) -> SimpleNamespace:
    """Like a vllm.CompletionOutput."""
    tokens = tokens.tolist()
    at = [{token: Logprob(value)} for token, value in zip(tokens, logprob.tolist(), strict=True)]
    return SimpleNamespace(index=0, text="", token_ids=tokens, logprobs=at, finish_reason="stop")


@contextmanager
def installed() -> Iterator[None]:
    """Install the stand-in as `vllm`, with an 80 GB GPU and the allocator's variables unset."""
    vllm = ModuleType("vllm")
    vllm.LLM = LLM
    vllm.SamplingParams = SamplingParams
    engines.clear()
    with (
        patch.dict(sys.modules, vllm=vllm),
        patch.dict(os.environ),
        patch.object(vllm_engine, "this_device", lambda: torch.device("cuda", 0)),
        patch.object(torch.cuda, "mem_get_info", lambda device=None: (60e9, 80e9)),
    ):
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            os.environ.pop(name, None)
        yield
