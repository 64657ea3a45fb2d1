"""benchmarks/flights.py and the sampling time printed by bench.py plan."""

import numpy as np
import pytest

import bench
import train
from benchmarks.flights import Sampler, groups_of, lengths, sampler_of, simulated
from benchmarks.plan import planned, qwen3
from benchmarks.scripted import (
    END_TOKEN,
    GROUP,
    PROMPT_WIDTH,
    random_model,
    scripted_jobs,
    scripted_lengths,
)
from rollout import Sampling, generate


@pytest.mark.parametrize(
    "in_flight, cache_tokens",
    [
        (12, 10**6),  # all at once
        (3, 10**6),
        (12, 600),  # some are paused
        (1, 1),
    ],
)
def test_simulated_passes_match_the_sampler(in_flight, cache_tokens):
    """Counts the forward passes of a model that samples responses with the same lengths."""
    of_responses = [3, 170, 70, 1, 200, 64, 65, 9, 128, 30, 5, 90]
    counted = []
    lm = random_model(64, vocabulary=40)
    lm.register_forward_hook(lambda *_: counted.append(1))
    sampling = Sampling(200, in_flight=in_flight, cache_tokens=cache_tokens)
    with scripted_lengths(of_responses):
        samples = generate(lm, scripted_jobs(len(of_responses)), [END_TOKEN], sampling)
    assert [len(sample.tokens) for sample in samples] == of_responses

    sampler = Sampler(1, 1, in_flight, cache_tokens)
    groups = groups_of(np.array(of_responses).reshape(-1, GROUP), PROMPT_WIDTH)
    rank = simulated(sampler, sum(groups, []))
    assert rank.passes == len(counted)


def test_seconds_match_a_hand_calculation():
    """Two responses of 100 and 10 tokens to one prompt of 50, in parallel: 64 and 36 passes."""
    sampler = Sampler(multiplying=10**9, cache_bytes=10**5, in_flight=2, cache_tokens=10**6)
    responses = groups_of(np.array([[100, 10]]), 50)[0]
    rank = simulated(sampler, responses)
    assert rank.passes == 100
    prefill = 2 * 10**9 * 50 / (0.4 * 989e12)  # once: both have the same prompt
    read = 64 * (2e9 + 2 * 50 * 1e5) + 36 * (2e9 + 114 * 1e5)
    assert rank.seconds == pytest.approx(prefill + 100 * 0.004 + read / (0.7 * 3.35e12))


@pytest.mark.parametrize("mean", [40, 2000, 4090])
def test_lengths_have_the_given_mean_and_maximum(mean):
    drawn = lengths(seed=1, prompts=50, group=8, mean=mean, longest=4096)
    assert drawn.shape == (50, 8)
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert drawn.min() >= 1 and drawn.max() <= 4096
    assert (lengths(1, 50, 8, 4096, 4096) == 4096).all()


def test_sampler_matches_the_papers_settings():
    flags = train.parse_config(["--model", "Qwen/Qwen3"])
    p = planned(qwen3("8B"), flags, 8, 80)
    sampler = sampler_of(qwen3("8B"), flags, 8, p.cache_tokens)
    assert sampler.cache_tokens >= p.in_flight * 22528
    assert sampler.in_flight == 256  # of 128 x 16 responses
    assert sampler.cache_bytes == 147_456


SMALL = ["plan", "--model", "toy", "--gpus", "2", "--prompts", "8", "--mini-batch", "8"]


def sampling_of(capsys, *flags):
    bench.main([*SMALL, *flags])
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("sampling")]
    return int(line.split(" forward passes")[0].split()[-1])


def test_plan_estimates_the_sampling_time(capsys):
    """At full length there are as many passes as tokens. Shorter responses take fewer passes."""
    flags = ["--max-new-tokens", "640", "--group-size", "4"]
    passes = {}
    for mean in (40, 160, 640):
        passes[mean] = sampling_of(capsys, *flags, "--mean-tokens", str(mean))
    assert passes[40] < passes[160] < passes[640] == 640
    assert sampling_of(capsys, *flags) == passes[160]  # a quarter
    drawn = lengths(0, 8, 4, 160, 640)
    assert passes[160] == drawn.max()  # all are in flight at once


def test_plan_refuses_an_impossible_mean(capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main([*SMALL, "--max-new-tokens", "64", "--mean-tokens", "65"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("bench.py plan: --mean-tokens 65 is not between")
