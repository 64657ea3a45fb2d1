"""Compares rollout.generate with transformers' continuous batching (`batching`).

Both sample identical responses from the same uniform numbers: from the toy's base model, and with
scripted lengths as in `bench.py rollouts`. transformers 5.23 has no public way to set a request's
random numbers, so two of its private names are used.
"""

from functools import partial

import numpy as np
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)

import toy
from benchmarks.rollouts import MIXES, VOCABULARY
from benchmarks.scripted import END_TOKEN, Scripted, random_model, sampled, script, scripted_jobs
from benchmarks.timing import alternate, ratios, spread
from rollout import InverseCDF, Job, Sample, Sampling, end_tokens, generate, random_numbers
from studies.tables import table_line

AT_ONCE = 32  # requests in a forward pass: the fastest of 16, 32, 64 and 256 on the toy
PAGE = 32  # tokens
BATCH_TOKENS = 4096  # in a forward pass
RESPONSES = 256
TOY = Sampling(80)

HEADER = """\
| responses | generate, tokens/s | continuous batching, tokens/s | time, continuous / generate |
|---|---|---|---|"""


def batching(args) -> list[dict]:
    """rollout.generate against transformers' continuous batching: tokens per second."""
    print(HEADER)
    rows = [measured("toy", on_the_toy(RESPONSES), args.repetitions)]
    for mix, lengths in MIXES.items():
        rows.append(measured(mix, scripted(lengths), 1))  # minutes each
    return rows


def measured(name: str, functions: dict, repetitions: int) -> dict:
    """Seconds of both samplers. Raises AssertionError if a response differs."""
    found = {}  # sampler -> responses

    def remembered(sampler: str) -> None:
        found[sampler] = functions[sampler]()

    seconds = alternate({each: partial(remembered, each) for each in functions}, repetitions)
    for one, other in zip(*found.values(), strict=True):
        assert np.array_equal(one.tokens, other.tokens)
    tokens = sum(len(sample.tokens) for sample in found["generate"])

    cells = [name, *(spread([tokens / x for x in seconds[each]], 0) for each in functions)]
    cells.append(spread(ratios(seconds["continuous"], seconds["generate"]), 1))
    print(table_line(cells), flush=True)
    return {"responses": name, "tokens": tokens, **seconds}


class PerRequest(ContinuousBatchingLogitsProcessor):
    """A rollout.InverseCDF whose rows are the requests that get a token in this pass."""

    supported_kwargs = {"job": int}
    ignored_kwargs = ()

    def __init__(self, choose: InverseCDF):
        self.choose = choose
        self.numbers = choose.uniforms  # [B, most], of all jobs
        self.logprobs = [[] for _ in self.numbers]  # of the tokens of each job

    def fill_defaults(self, int32_tensor):
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token):
        states = [request.state for request in requests_with_new_token]
        # A resumed request has its earlier tokens in its prompt.
        done = [len(state.to_generation_output().generated_tokens) for state in states]
        self.jobs = [state.logit_processor_kwargs["job"] for state in states]
        self.choose.uniforms = self.numbers[self.jobs, done][:, None]
        return torch.zeros(len(states), dtype=torch.int32)  # too small for 64-bit numbers

    def __call__(self, scores, tensor_arg):
        chosen = self.choose(torch.empty(1, self.choose.prompt_width), scores)
        for job, logprob in zip(self.jobs, self.choose.logprobs.pop().tolist(), strict=True):
            self.logprobs[job].append(logprob)
        return chosen


def batched(lm, jobs: list[Job], ends: list[int], choose: InverseCDF, blocks: int) -> list[Sample]:
    """Returns the same as rollout.generate. choose.uniforms: [B, most]. blocks: cache pages."""
    processor = PerRequest(choose)
    most = choose.uniforms.shape[1]
    lm._get_logits_processor = lambda _: LogitsProcessorList([processor])  # no argument takes it
    manager = lm.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, max_new_tokens=most, eos_token_id=ends),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=blocks,
            max_batch_tokens=BATCH_TOKENS,
            max_requests_per_batch=AT_ONCE,
            auto_switch_to_flash=False,
            use_async_batching=False,  # it prepares requests before their last token is known
            use_cuda_graph=False,  # a graph would replay the numbers of its first batch
        ),
    )
    del lm._get_logits_processor
    manager.logit_processor.tensors_required = 1
    manager.start()
    outputs = {}
    for i, job in enumerate(jobs):
        manager.add_request(job.prompt, str(i), job=i)
    while len(outputs) < len(jobs) and manager.is_running():
        output = manager.get_result(timeout=1)
        if output:
            outputs[int(output.request_id)] = output.generated_tokens
    manager.stop(block=True)
    return [
        Sample(np.array(outputs[i], dtype=np.int32), np.array(processor.logprobs[i]))
        for i in range(len(jobs))
    ]


def enough_blocks(jobs: list[Job], most: int) -> int:
    """Pages for all jobs at their longest."""
    return sum(-(-(len(job.prompt) + most) // PAGE) for job in jobs)


def on_the_toy(count: int, cache: float = 1.0) -> dict:
    """Both samplers for `count` responses of the toy. cache: share of the full cache size."""
    lm, tokenizer = toy.base_model()
    problems = toy.problems(count // 4, seed=5)
    prompts = tokenizer([problem["problem"] for problem in problems]).input_ids
    jobs = [Job(prompts[i // 4], (0, 1, i // 4, i % 4)) for i in range(count)]
    ends = end_tokens(lm, tokenizer)
    blocks = int(cache * enough_blocks(jobs, TOY.max_new_tokens))

    def continuous() -> list[Sample]:
        numbers = np.stack([random_numbers(*job.name).random(TOY.max_new_tokens) for job in jobs])
        choose = InverseCDF(torch.from_numpy(numbers), 0, TOY.temperature, TOY.top_p)
        return batched(lm, jobs, ends, choose, blocks)

    return {"generate": partial(generate, lm, jobs, ends, TOY), "continuous": continuous}


def scripted(lengths: list[int]) -> dict:
    """Both samplers for responses of these lengths."""
    lm = random_model(64, VOCABULARY)
    jobs = scripted_jobs(len(lengths))

    def chunked() -> list[Sample]:
        return [Sample(tokens, np.empty(0)) for tokens in sampled(lm, lengths)]

    def continuous() -> list[Sample]:
        numbers = np.stack([script(i, length, max(lengths)) for i, length in enumerate(lengths)])
        choose = Scripted(torch.from_numpy(numbers), 0, 1.0, 1.0)
        return batched(lm, jobs, [END_TOKEN], choose, enough_blocks(jobs, max(lengths)))

    return {"generate": chunked, "continuous": continuous}
