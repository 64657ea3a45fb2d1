"""`--engine vllm`: vLLM samples in the place of `generate`, on the GPUs that train.

Written to vLLM 0.30 as TRL 1.16 uses it in its colocate mode. It was tested with a stand-in that
has vLLM's signatures (tests/fake_vllm.py), and never run with vLLM itself.

Every rank has an engine of its own beside its shards of the policy. While the policy trains, the
engine sleeps, and holds neither weights nor caches. A rollout wakes it:

    wake_up weights     memory for the weights
    load_weights        θ_old, gathered one tensor at a time, so never whole beside the engine's
    wake_up kv_cache    memory for the caches
    a request           for each response, with a seed fixed by (seed, step, problem, sample)
    sleep, level 2      the memory is given back; the weights are not kept

vLLM draws other tokens than `generate` does from the same seed, and in bfloat16 other ones as soon
as a request shares its batch with others. Its distribution differs from the scored one by rounding:
`mismatch` shows by how much, and --importance-cap corrects it.

This file is the example for another engine. A run uses of it: `refuse_machine` before anything is
loaded, the constructor, `holding` around a rollout, and `sample` inside, which rollout.generate
calls; rollout.rollout reads `device` and `generation_config`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from infra.agreement import computation_dtype
from infra.cache import SHARE_OF_FREE_MEMORY
from infra.errors import Interrupted, UserError, first_line
from infra.policy import Policy
from infra.progress import Progress
from infra.ranks import full_tensor, rank_and_world, this_device

TRAINING_BYTES = 12  # a parameter: weight and two Adam moments in float32; gradients are freed
BATCHED_TOKENS = 4096  # in a forward of the engine; vLLM's default counts too much working memory


def refuse_machine() -> None:
    """Raise UserError where vLLM cannot run beside the training; the first thing a run calls."""
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
                f"--engine vllm: {name} asks for expandable segments of GPU memory, which an "
                "engine that sleeps cannot give back: unset it"
            )
    if not any(name in os.environ for name in names):  # else ranks.py lets segments expand
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:False"


def request_seed(job) -> int:
    """63 bits fixed by the response's name, as its uniform numbers are (rollout.uniforms)."""
    return int(np.random.default_rng([*job.name, job.begin]).integers(2**63))


def drawn(output) -> tuple[np.ndarray, np.ndarray]:
    """(tokens [n] int32, their log p [n] float32) of a vllm.CompletionOutput."""
    tokens = list(output.token_ids)
    logprob = [at[token].logprob for token, at in zip(tokens, output.logprobs, strict=True)]
    if not np.isfinite(logprob).all():
        raise FloatingPointError("the engine's log-probabilities are not finite")
    return np.array(tokens, dtype=np.int32), np.array(logprob, dtype=np.float32)


class VLLMEngine:
    """Stands in `rollout` where the model stands, and samples by itself."""

    def __init__(self, folder: Path, policy: Policy, longest: int, in_flight: int):
        """All ranks call, after `refuse_machine`: vLLM takes the least of their free memory.

        folder: the model's, which holds its config.
        policy: whose weights are sampled from.
        longest: tokens of prompt and response, at most.
        in_flight: requests at once, at most.
        """
        from vllm import LLM

        self.policy = policy
        self.device = policy.lm.device
        self.generation_config = policy.lm.generation_config
        self.dtype = computation_dtype()
        self.requests = 0  # so far; vLLM numbers them in turn

        rank, world = rank_and_world()
        for name, value in (("RANK", rank), ("LOCAL_RANK", 0), ("WORLD_SIZE", world)):
            os.environ.setdefault(name, str(value))  # torchrun has set them; vLLM asks
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
        """Of the GPU's memory, what the engine may take: part of what the training leaves free."""
        _, total = torch.cuda.mem_get_info()
        mine = 0
        for parameter in self.policy.parameters():
            mine += (parameter.to_local() if isinstance(parameter, DTensor) else parameter).numel()
        return SHARE_OF_FREE_MEMORY * (1 - TRAINING_BYTES * mine / total)

    @contextmanager
    def holding(self) -> Iterator["VLLMEngine"]:
        """The engine, awake and with the policy's weights of now. All ranks enter."""
        torch.cuda.empty_cache()
        self.llm.wake_up(tags=["weights"])
        self.llm.apply_model(self.load)
        self.llm.reset_prefix_cache()  # of the old weights
        self.llm.wake_up(tags=["kv_cache"])
        try:
            yield self
        finally:
            self.llm.sleep(level=2)

    @torch.no_grad()
    def load(self, model: torch.nn.Module) -> None:
        """Fill vLLM's model with the policy's weights. Raises UserError where one is left out."""
        loaded = model.load_weights(self.weights())
        missing = {name for name, _ in model.named_parameters()} - loaded
        if missing:
            raise UserError(
                f"--engine vllm: {len(missing)} weights of vLLM's {type(model).__name__} are not "
                f"among the policy's, such as {min(missing)}: drop the flag"
            )

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, whole tensor in the engine's dtype) of each parameter, a tied one once.

        The names are those of the Hugging Face model. A shard is cast before it is gathered.
        """
        for name, parameter in self.policy.lm.named_parameters():
            yield name, full_tensor(parameter.detach().to(self.dtype))

    def sample(
        self, jobs: list, ends: list[int], sampling, stop: Callable[[], bool] | None = None
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(i, tokens, log p) of the response to job i, as they finish; on this rank alone.

        jobs, ends, sampling: as of rollout.generate. Raises FloatingPointError, and Interrupted
        once stop() is true between two forwards of the engine.
        """
        from vllm import SamplingParams

        settings = [
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_new_tokens,
                stop_token_ids=ends,
                seed=request_seed(job),
                logprobs=0,  # of the drawn token alone
                detokenize=False,
            )
            for job in jobs
        ]
        prompts = [{"prompt_token_ids": job.prompt} for job in jobs]
        self.llm.enqueue(prompts, settings, use_tqdm=False)
        first = self.requests
        self.requests += len(jobs)

        finished, most = 0, len(jobs) * sampling.max_new_tokens  # tokens
        with closing(Progress("sampling", most)) as progress:
            while self.llm.llm_engine.has_unfinished_requests():
                for request in self.llm.llm_engine.step():
                    if not request.finished:
                        continue
                    tokens, logprob = drawn(request.outputs[0])
                    finished += len(tokens)
                    most -= sampling.max_new_tokens - len(tokens)
                    yield int(request.request_id) - first, tokens, logprob
                progress.show(finished, most)
                if stop and stop():
                    raise Interrupted
