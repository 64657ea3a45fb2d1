"""infra/vllm_engine.py with the real vLLM 0.30 on a CPU: `make engines`."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from forked import ROOT
from models import response_logits
from toy_runs import SCRIPT, SMALL, read_lines, refusal, train_small, with_turns

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

from wide_toy import save_wide_toy

import toy
import train
from infra import vllm_engine
from infra.model_files import locate
from infra.ranks import start_ranks
from infra.sampler import Running
from infra.vllm_engine import VLLMEngine
from loading import load_policy
from rollout import Sampling, generator_of, token_distribution
from toy import TOKEN_ID

ENGINE = ["--engine", "vllm", "--max-new-tokens", "64", "--recompute", "False"]
ENGINE += ["--max-prompt-tokens", "64", "--micro-batch-tokens", "4096", "--lr", "1e-4"]
EOS, NEWLINE = TOKEN_ID["<eos>"], TOKEN_ID["\n"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return save_wide_toy(tmp_path_factory.mktemp("wide"))


@pytest.fixture(scope="module")
def asleep(wide) -> VLLMEngine:
    """An engine of the toy, before `holding`."""
    start_ranks()
    return engine_of(wide)


def engine_of(model) -> VLLMEngine:
    """An engine of a model, a folder or a hub id."""
    policy, _ = load_policy(model)
    folder, _, _ = locate(model)
    return VLLMEngine(folder, policy, longest=200, in_flight=16, dtype=torch.float32)


@pytest.fixture
def engine(asleep) -> VLLMEngine:
    """The engine, with the policy's weights."""
    with asleep.holding():
        yield asleep


def requests(count: int) -> list[Running]:
    prompts = toy.build_tokenizer()([x["problem"] for x in toy.problems(count)]).input_ids
    return [Running(prompt, generator_of(0, 1, i, 0)) for i, prompt in enumerate(prompts)]


def tokens_of(responses) -> list[list[int]]:
    return [response.result()[0].tolist() for response in responses]


# ---- samples -------------------------------------------------------------------------------------


@torch.no_grad()
def difference(
    engine: VLLMEngine, temperature: float = 1.0, top_p: float = 1.0, times: int = 12
) -> float:
    """The mean difference of log p between vLLM, with the weights it has, and plain passes.

    times: that each prompt is repeated. Twelve fill a block of vLLM's prefix cache, 128 tokens, but
        log p of texts so unlike the toy's is rounded ten times as much.
    """
    asked = [Running((times * request.prompt)[:140], request.generator) for request in requests(8)]
    samples = list(engine.sample(asked, [], Sampling(24, temperature, top_p)))
    differences = []
    with engine.policy.unsharded() as lm:
        for request in samples:
            tokens, logprob = request.result()
            logits = response_logits(lm, request.prompt, tokens)
            p = token_distribution(logits, temperature, top_p)
            expected = p.log().gather(1, torch.from_numpy(tokens).long()[:, None]).squeeze(1)
            differences.append((expected - torch.from_numpy(logprob)).abs())
    return float(torch.cat(differences).mean())


@pytest.mark.parametrize("temperature, top_p", [(1.0, 1.0), (0.8, 0.7)])
def test_log_p_is_that_of_the_distribution_drawn_from(engine, temperature, top_p):
    """On the toy's own texts: rounding of repeated ones, 1e-6, differs with the processor."""
    assert difference(engine, temperature, top_p, times=1) < 1e-6


def test_prompts_that_do_not_fit_in_one_pass_run_in_several(wide, monkeypatch):
    """A prompt in parts would end in "CPU Generator does not use offset"."""
    monkeypatch.setattr(vllm_engine, "BATCHED_TOKENS", 1)  # so a pass has 200 tokens, --longest
    with engine_of(wide).holding() as engine:
        assert difference(engine) < 3e-6  # as for other texts of 140 tokens


def test_a_response_ends_with_the_first_of_its_end_tokens(engine):
    for ends in ([EOS], [EOS, NEWLINE]):
        for tokens in tokens_of(engine.sample(requests(16), ends, Sampling(72))):
            assert [i for i, token in enumerate(tokens) if token in ends] == [len(tokens) - 1]
    lengths = [len(tokens) for tokens in tokens_of(engine.sample(requests(16), [EOS], Sampling(5)))]
    assert lengths == 16 * [5]


def test_a_sample_depends_only_on_its_request(engine):
    """The responses come in the order of the requests, whatever else is sampled."""
    ends = [EOS, TOKEN_ID["5"]]  # of many lengths, so that they finish in another order
    every = tokens_of(engine.sample(requests(40), ends, Sampling(72)))  # more than in flight
    assert len({len(tokens) for tokens in every}) > 5
    some = [33, 2, 17]
    chosen = engine.sample([requests(40)[i] for i in some], ends, Sampling(72))
    assert tokens_of(chosen) == [every[i] for i in some]
    assert list(engine.sample([], ends, Sampling(72))) == []


# ---- weights -------------------------------------------------------------------------------------


@contextmanager
def changed(parameter):
    """Change a parameter at random: q and k are normalised, so a factor would change nothing."""
    shard = parameter.detach().to_local()
    own = shard.clone()
    shard *= 1 + 0.2 * torch.randn(shard.shape, generator=torch.Generator().manual_seed(0))
    try:
        yield
    finally:
        shard.copy_(own)


def test_every_tensor_of_the_policy_reaches_vllm(asleep):
    for name, parameter in asleep.policy.lm.named_parameters():
        with asleep.holding() as engine, changed(parameter):
            assert difference(engine, times=1) > 1e-4, f"{name} changes nothing"
        with changed(parameter), asleep.holding() as engine:
            assert difference(engine, times=1) < 1e-6, name


def test_cached_prefixes_are_discarded_with_the_weights_they_came_from(asleep):
    values = asleep.policy.lm.get_parameter("model.layers.0.self_attn.v_proj.weight")
    with asleep.holding() as engine:
        before = difference(engine)
    with changed(values), asleep.holding() as engine:
        assert difference(engine) < 3 * before  # with old prefixes above 1e-4


def test_a_tied_head_reaches_vllm(tmp_path):
    start_ranks()
    tied = save_wide_toy(tmp_path / "model", tie_word_embeddings=True)
    with engine_of(tied).holding() as engine:
        assert difference(engine) < 1e-6


@pytest.mark.skipif("MODEL" not in os.environ, reason="make engines MODEL=...")
def test_a_real_model_has_the_policys_log_p():
    start_ranks()
    with engine_of(os.environ["MODEL"]).holding() as engine:
        assert difference(engine) < 1e-4


@pytest.fixture
def refused(asleep, tmp_path, capsys):
    """refused(model) -> why a run with vLLM ends.

    After another engine: the first one in a process asks for sys.stdout.fileno(), and capsys's
    stdout has none.
    """

    def of(model) -> str:
        flags = [*SMALL, *ENGINE, "--model", model, "--output-dir", tmp_path / "run"]
        return refusal(train.main, flags, capsys)

    return of


def test_what_vllm_cannot_run_on_a_cpu_is_refused(refused, tmp_path):
    said = refused(toy.base_folder())
    assert re.search("vLLM cannot run this qwen3; .*head_dim=16", said)
    assert not (tmp_path / "run").exists()


def test_what_vllm_runs_differently_is_refused_after_a_step(refused, wide, tmp_path, monkeypatch):
    """Here vLLM keeps random weights. Nothing of the step is kept."""
    monkeypatch.setattr(VLLMEngine, "load", lambda engine, model: None)
    assert "vLLM runs this model differently" in refused(wide)
    assert read_lines(tmp_path / "run" / "metrics.jsonl") == []


# ---- runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(wide, tmp_path_factory) -> list[dict]:
    """The metrics of a run of three steps."""
    return train_small(tmp_path_factory.mktemp("whole"), *ENGINE, "--model", str(wide), steps=3)


def test_a_run_samples_from_its_current_weights(whole):
    for row in whole:
        assert row["mismatch"] < 1e-6
        assert row["grad_norm"] > 0


def test_two_ranks_agree_with_one(whole, wide, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    flags = [*SMALL, *ENGINE, "--model", str(wide), "--steps", "2", "--output-dir", tmp_path]
    subprocess.run([*torchrun, SCRIPT, *map(str, flags)], cwd=ROOT, check=True)
    for row, other in zip(read_lines(tmp_path / "metrics.jsonl"), whole[:2], strict=True):
        assert row["reward"] == other["reward"]
        assert row["response_length"] == other["response_length"]
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-6)
        assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
        assert row["mismatch"] < 1e-6


def test_vllm_ends_an_exported_model_where_its_run_did(wide, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams

    turn = with_turns(wide, tmp_path / "base")
    flags = ["--model", str(tmp_path / "base"), "--prompt-template", "{problem}", "--lr", "1e-6"]
    train_small(tmp_path / "run", *flags, steps=2)
    llm = LLM(
        str(tmp_path / "run" / "model"),
        dtype="float32",
        max_model_len=200,
        enforce_eager=True,
        kv_cache_memory_bytes=2**28,
    )
    prompt = {"prompt_token_ids": toy.build_tokenizer()("8+3-3*9+6*8=?").input_ids}
    (answer,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=150))
    ids = list(answer.outputs[0].token_ids)
    assert ids.index(turn) == len(ids) - 1 < 149
