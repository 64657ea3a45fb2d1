"""`--engine vllm`: vLLM samples the responses instead of `generate`, where the training runs.

Every rank has one engine in its process, alongside its shards of the policy. On a GPU the engine
sleeps during training and holds neither weights nor caches; on a CPU vLLM cannot sleep. A rollout:

    wake_up weights     memory for the weights
    load                θ_old, gathered one layer at a time, so that no second full copy exists
    wake_up kv_cache    memory for the caches
    a request           for each response, with a seed from its random generator
    sleep, level 2      frees the memory; weights and cached prefixes are discarded

A model that vLLM samples differently is refused after the first step (infra.log). `mismatch` shows
the rounding at every step, and --importance-cap corrects for it. Another engine needs `holding`
around each rollout, where rollout.rollout calls `sample`, and end_tokens reads the two configs.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from transformers.core_model_loading import revert_weight_conversion

from infra.errors import one_line
from infra.progress import Progress
from infra.ranks import full_tensor, rank_and_world, this_device
from infra.sampler import SHARE_OF_FREE_MEMORY, Running

TRAINING_BYTES = 12  # per parameter: weight and two Adam moments in float32; no gradients
CPU_CACHE_BYTES = 2**30  # for keys and values, without a GPU
BATCHED_TOKENS = 4096  # per forward pass; vLLM's default reserves too much working memory


def drawn(output) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens [n], their log p [n] float32) from a vllm.CompletionOutput."""
    tokens = list(output.token_ids)
    logprob = [at[token].logprob for token, at in zip(tokens, output.logprobs, strict=True)]
    return torch.tensor(tokens), torch.tensor(logprob)


def layer_of(named_parameter: tuple[str, torch.Tensor]) -> str:
    """The prefix of a parameter's layer, such as `model.layers.0.`; empty outside the layers."""
    return re.match(r"(.*?\.\d+\.)?", named_parameter[0])[0]


class VLLMEngine:
    """Takes the model's place in `rollout` and samples the responses."""

    def __init__(self, folder: Path, policy, longest: int, in_flight: int, dtype: torch.dtype):
        """All ranks call this. vLLM sizes itself by the least free memory.

        folder: the model's. policy: the policy.Policy whose weights are used. longest: max tokens
        in prompt and response together. in_flight: max requests at once. dtype: of the computation.
        Raises UserError if vLLM cannot run the model or take its weights.
        """
        from vllm import LLM

        self.policy = policy
        self.config = policy.lm.config
        self.generation_config = policy.unsharded_lm[0].generation_config  # of the model's files
        self.dtype = dtype
        kind = policy.lm.config.model_type

        rank, world = rank_and_world()
        for name, value in (("RANK", rank), ("LOCAL_RANK", 0), ("WORLD_SIZE", world)):
            os.environ.setdefault(name, str(value))  # vLLM reads them; torchrun sets them
        torch.cuda.empty_cache()
        with one_line(folder, f"vLLM cannot run this {kind}; drop --engine vllm"):
            self.llm = LLM(
                str(folder),
                load_format="dummy",  # random weights
                dtype=self.dtype,
                seed=rank,
                tensor_parallel_size=1,
                distributed_executor_backend="external_launcher",  # in this process, as one rank
                max_model_len=longest,
                max_num_seqs=in_flight,
                max_num_batched_tokens=max(BATCHED_TOKENS, in_flight, longest),
                logprobs_mode="processed_logprobs",  # after temperature and top-p, as drawn
                hf_overrides={"head_dtype": "float32"},  # logits in float32, as in the policy
                **self.memory(),
            )
            self.llm.sleep(level=2)
            with self.holding():  # what vLLM cannot do fails here, not in the first rollout
                self.llm.generate([{"prompt_token_ids": [0]}], use_tqdm=False)

    def memory(self) -> dict:
        """LLM's arguments for memory: on a GPU, most of what training leaves free."""
        if this_device().type == "cpu":
            # vLLM resets a request's generator after each part of a prompt, which a CPU's cannot.
            whole_prompts = {"enable_chunked_prefill": False}
            return {
                "kv_cache_memory_bytes": CPU_CACHE_BYTES,
                "enforce_eager": True,
                **whole_prompts,
            }
        _, total = torch.cuda.mem_get_info()
        mine = 0
        for parameter in self.policy.parameters():
            mine += (parameter.to_local() if isinstance(parameter, DTensor) else parameter).numel()
        share = SHARE_OF_FREE_MEMORY * (1 - TRAINING_BYTES * mine / total)
        return {"gpu_memory_utilization": share, "enable_sleep_mode": True}

    @contextmanager
    def holding(self) -> Iterator["VLLMEngine"]:
        """The engine, awake and with the policy's current weights. All ranks enter."""
        torch.cuda.empty_cache()
        self.llm.wake_up(tags=["weights"])
        self.llm.apply_model(self.load)
        self.llm.wake_up(tags=["kv_cache"])
        try:
            yield self
        finally:
            self.llm.sleep(level=2)

    @torch.no_grad()
    def load(self, model: torch.nn.Module) -> None:
        """Copy the policy's weights into vLLM's model."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        # Kernels have layouts of their own: for all layers on a CPU, for experts on GPUs. There
        # `load_weights` alone fails or has no effect. These are the steps of vLLM's
        # GPUModelRunner.reload_weights.
        config = self.llm.llm_engine.vllm_config
        with set_current_vllm_config(config):
            initialize_layerwise_reload(model)
            model.load_weights(self.weights())
            finalize_layerwise_reload(model, config.model_config)
            for layer in model.modules():
                if isinstance(layer, ParallelLMHead):  # if tied, a CPU's kernel has an old copy
                    layer.quant_method.process_weights_after_loading(layer)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, full tensor in the engine's dtype) of each weight; tied weights once.

        Names and shapes are those of the model's files: transformers joins some weights of a layer,
        such as its experts.
        """
        lm = self.policy.lm
        for _, layer in groupby(lm.named_parameters(), key=layer_of):
            full = {name: full_tensor(x.detach().to(self.dtype)) for name, x in layer}
            yield from revert_weight_conversion(lm, full).items()

    def sample(self, responses: list[Running], ends: list[int], sampling) -> Iterator[Running]:
        """Sample the responses of this rank, as rollout.sample_responses does."""
        from vllm import SamplingParams

        settings = [
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_new_tokens,
                ignore_eos=True,  # only the tokens in `ends` end a response
                stop_token_ids=ends,
                seed=int(response.generator.integers(2**63)),
                logprobs=0,  # only of the drawn token
                detokenize=False,
            )
            for response in responses
        ]
        prompts = [{"prompt_token_ids": response.prompt} for response in responses]
        engine = self.llm.llm_engine
        self.llm.enqueue(prompts, settings, use_tqdm=False)
        outputs = {}  # by vLLM's number of the request, which rises with the responses
        with Progress("sampling", len(responses), "responses") as progress:
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.finished:
                        outputs[int(output.request_id)] = output.outputs[0]
                        progress.update()
        for response, number in zip(responses, sorted(outputs), strict=True):
            response.append(*drawn(outputs[number]), ends, sampling.max_new_tokens)
            yield response
