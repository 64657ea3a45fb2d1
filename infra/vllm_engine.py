"""`--engine vllm`: vLLM samples the responses instead of `generate`, on the training GPUs.

The code follows TRL 1.16's colocate mode with vLLM 0.30. It is tested only with a stand-in that has
vLLM's signatures (tests/fake_vllm.py); it has never run with vLLM.

Every rank has one engine alongside its shards of the policy. During training the engine sleeps and
holds neither weights nor caches. A rollout wakes it:

    wake_up weights     memory for the weights
    load_weights        θ_old, gathered one tensor at a time, so that no second full copy exists
    wake_up kv_cache    memory for the caches
    a request           for each response, with a seed fixed by (seed, step, problem, sample)
    sleep, level 2      frees the memory; the weights are discarded

With the same seed, vLLM and `generate` draw different tokens. In bfloat16 vLLM's tokens also depend
on the other requests in the batch. Its distribution differs from the policy's by rounding:
`mismatch` shows by how much, and --importance-cap corrects for it.

Another engine needs the same interface. A run calls `refuse_machine` before anything is loaded,
then the constructor, then `holding` around each rollout. In `holding`, rollout.generate calls
`sample`, and rollout.rollout reads `device` and `generation_config`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from infra.errors import Interrupted, UserError, first_line
from infra.progress import Progress
from infra.ranks import computation_dtype, full_tensor, rank_and_world, this_device
from infra.sampler import SHARE_OF_FREE_MEMORY

TRAINING_BYTES = 12  # per parameter: weight and two Adam moments in float32; no gradients
BATCHED_TOKENS = 4096  # per forward pass; vLLM's default reserves too much working memory


def refuse_machine() -> None:
    """Raise UserError if vLLM cannot run on the training GPUs. A run calls this first."""
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"--engine vllm: vllm cannot be imported ({first_line(error)}): "
            "pip install vllm==0.30.0, or drop the flag"
        ) from error
    if this_device().type == "cpu":
        raise UserError("--engine vllm needs a GPU, and torch finds none: drop the flag")
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    for name in names:
        if "expandable_segments:True" in os.environ.get(name, ""):
            raise UserError(
                f"--engine vllm: {name} enables expandable segments of GPU memory, which a "
                "sleeping engine cannot free: unset it"
            )
    if not any(name in os.environ for name in names):  # else ranks.py would set it
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:False"


def request_seed(job) -> int:
    """A 63-bit seed, fixed by the job's name like the draws of rollout.random_numbers."""
    return int(np.random.default_rng([*job.name, job.begin]).integers(2**63))


def drawn(output) -> tuple[np.ndarray, np.ndarray]:
    """(tokens [n] int32, their log p [n] float32) from a vllm.CompletionOutput."""
    tokens = list(output.token_ids)
    logprob = [at[token].logprob for token, at in zip(tokens, output.logprobs, strict=True)]
    if not np.isfinite(logprob).all():
        raise FloatingPointError("the engine's log-probabilities are not finite")
    return np.array(tokens, dtype=np.int32), np.array(logprob, dtype=np.float32)


class VLLMEngine:
    """Takes the model's place in `rollout` and samples the responses."""

    def __init__(self, folder: Path, policy, longest: int, in_flight: int):
        """All ranks call this after `refuse_machine`. vLLM sizes itself by the least free memory.

        folder: the model's folder, with its config.
        policy: the policy.Policy whose weights are used for sampling.
        longest: max tokens in prompt and response together.
        in_flight: max requests at once.
        """
        from vllm import LLM

        self.policy = policy
        self.device = policy.lm.device
        self.generation_config = policy.lm.generation_config
        self.dtype = computation_dtype()
        self.requests = 0  # requests so far; vLLM numbers them from 0

        rank, world = rank_and_world()
        for name, value in (("RANK", rank), ("LOCAL_RANK", 0), ("WORLD_SIZE", world)):
            os.environ.setdefault(name, str(value))  # vLLM reads them; torchrun sets them
        torch.cuda.empty_cache()
        self.llm = LLM(
            str(folder),
            dtype=self.dtype,
            seed=rank,
            tensor_parallel_size=1,
            distributed_executor_backend="external_launcher",  # in this process, as one rank
            gpu_memory_utilization=self.share_of_memory(),
            enable_sleep_mode=True,
            max_model_len=longest,
            max_num_seqs=in_flight,
            max_num_batched_tokens=max(BATCHED_TOKENS, in_flight),
            logprobs_mode="processed_logprobs",  # after temperature and top-p, as drawn
        )
        self.llm.sleep(level=2)

    def share_of_memory(self) -> float:
        """The share of the GPU's memory for the engine: most of what training leaves free."""
        _, total = torch.cuda.mem_get_info()
        mine = 0
        for parameter in self.policy.parameters():
            mine += (parameter.to_local() if isinstance(parameter, DTensor) else parameter).numel()
        return SHARE_OF_FREE_MEMORY * (1 - TRAINING_BYTES * mine / total)

    @contextmanager
    def holding(self) -> Iterator["VLLMEngine"]:
        """The engine, awake and with the policy's current weights. All ranks enter."""
        torch.cuda.empty_cache()
        self.llm.wake_up(tags=["weights"])
        self.llm.apply_model(self.load)
        self.llm.reset_prefix_cache()  # computed with the old weights
        self.llm.wake_up(tags=["kv_cache"])
        try:
            yield self
        finally:
            self.llm.sleep(level=2)

    @torch.no_grad()
    def load(self, model: torch.nn.Module) -> None:
        """Copy the policy's weights into vLLM's model. Raises UserError if one is missing."""
        loaded = model.load_weights(self.weights())
        missing = {name for name, _ in model.named_parameters()} - loaded
        if missing:
            raise UserError(
                f"--engine vllm: the policy lacks {len(missing)} weights of vLLM's "
                f"{type(model).__name__}, such as {min(missing)}: drop the flag"
            )

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, full tensor in the engine's dtype) of each parameter; tied parameters once.

        The names are the Hugging Face model's. Shards are cast before they are gathered.
        """
        for name, parameter in self.policy.lm.named_parameters():
            yield name, full_tensor(parameter.detach().to(self.dtype))

    def sample(
        self, jobs: list, ends: list[int], sampling, stop: Callable[[], bool] | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(tokens, log p) of the response to each job, on this rank only.

        jobs, ends, sampling: as for rollout.generate. Raises FloatingPointError if a log p is not
        finite, Interrupted if stop() is true between two forward passes of the engine.
        """
        from vllm import SamplingParams

        settings = [
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_new_tokens,
                stop_token_ids=ends,
                seed=request_seed(job),
                logprobs=0,  # only of the drawn token
                detokenize=False,
            )
            for job in jobs
        ]
        prompts = [{"prompt_token_ids": job.prompt} for job in jobs]
        self.llm.enqueue(prompts, settings, use_tqdm=False)
        first = self.requests
        self.requests += len(jobs)

        responses = [None] * len(jobs)
        finished, most = 0, len(jobs) * sampling.max_new_tokens  # tokens
        with closing(Progress("sampling", most)) as progress:
            while self.llm.llm_engine.has_unfinished_requests():
                for request in self.llm.llm_engine.step():
                    if not request.finished:
                        continue
                    i = int(request.request_id) - first
                    responses[i] = tokens, _ = drawn(request.outputs[0])
                    finished += len(tokens)
                    most -= sampling.max_new_tokens - len(tokens)
                progress.show(finished, most)
                if stop and stop():
                    raise Interrupted
        return responses
