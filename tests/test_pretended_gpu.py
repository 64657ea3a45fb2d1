"""The GPU code on a simulated GPU: every branch runs, and waits for the GPU are counted."""

import ast
import copy
import sys
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from conftest import ROOT
from fake_vllm import installed
from infra.model_files import least_bytes, refuse_too_large
from infra.packing import uploaded
from infra.policy import room_for
from pretend_cuda import CUDA, is_on_gpu, on_gpu, pretended, waits
from torch import distributed as dist
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from toy_runs import refusal, small_config
from transformers import AutoModelForCausalLM, Qwen3Config

import train
from benchmarks import gpu
from benchmarks.plan import planned, qwen3
from benchmarks.scripted import sampled
from benchmarks.sizes import sizes_of
from infra import loading, ranks
from infra.errors import UserError
from infra.folder import unlock

NEEDS_TRL = "benchmarks/trl_step.py"  # measures another program


# ---- device checks in the sources ----------------------------------------------------------------


def asks(node: ast.AST) -> bool:
    """Whether an expression checks the device: is_cuda, a device type, or is_available."""
    if isinstance(node, ast.Attribute):
        return node.attr == "is_cuda" or ast.unparse(node) == "torch.cuda.is_available"
    if not isinstance(node, ast.Compare):
        return False
    return any(
        isinstance(side, ast.Constant) and side.value in ("cpu", "cuda")
        for side in (node.left, *node.comparators)
    )


def questions() -> dict[str, str]:
    """{line of a device check, such as `infra/head.py:125`: the first line a GPU then runs}."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name.startswith(("tests/", ".venv/")) or name == NEEDS_TRL:
            continue
        for parent in ast.walk(ast.parse(path.read_text())):
            block = getattr(parent, "body", None)
            if not isinstance(block, list):
                continue
            for statement, following in zip(block, [*block[1:], None], strict=True):
                line = asking_line(statement)
                if line:
                    found[f"{name}:{line}"] = f"{name}:{gpu_line(statement, following, line)}"
    return found


def asking_line(statement: ast.stmt) -> int | None:
    """The line that checks the device in the statement itself, not in an inner statement."""
    parts = [statement.test] if isinstance(statement, ast.If) else [statement]
    if hasattr(statement, "body") and not isinstance(statement, ast.If):
        return None  # its block is searched separately
    for part in parts:
        for node in ast.walk(part):
            if asks(node):
                return node.lineno
    return None


def gpu_line(statement: ast.stmt, following: ast.stmt | None, line: int) -> int:
    """The first line that runs only on a GPU, if there is one."""
    if not isinstance(statement, ast.If):
        return line
    test = ast.unparse(statement.test)
    if "'cpu'" in test or test.startswith("not "):
        return following.lineno
    return statement.body[0].lineno


# ---- all of it runs ------------------------------------------------------------------------------


def lines_of(function) -> set[str]:
    """The lines, such as `infra/head.py:125`, that function() runs in files with device checks."""
    files = {f"{ROOT}/{place.partition(':')[0]}" for place in questions()}
    seen = set()

    def by_line(frame, event, _):
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        return by_line

    def by_call(frame, event, _):
        return by_line if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(by_call)
    try:
        function()
    finally:
        sys.settrace(before)
    return {f"{path.removeprefix(f'{ROOT}/')}:{line}" for path, line in seen}


def start_with_nccl() -> None:
    """Run ranks.start_ranks with the process group replaced by a mock."""
    with (
        patch.object(dist, "is_initialized", lambda: False),
        patch.object(dist, "init_process_group") as started,
        patch.object(ranks, "limit_nccl") as limited,
        patch.dict("os.environ"),
    ):
        ranks.start_ranks()
    assert started.call_args.args == ("cpu:gloo,cuda:nccl",)
    assert limited.called


def shard_for_gpus() -> None:
    """Run ranks.shard with FSDP replaced by a mock: bfloat16, gradients reduced in float32."""
    with patch.object(ranks, "fully_shard") as sharded:
        ranks.shard(torch.nn.Linear(1, 1), [], SimpleNamespace(device_type="cuda"))
    policy = sharded.call_args.kwargs["mp_policy"]
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)


SMALL = [
    *("--prompts", "2"),
    *("--group-size", "2"),
    *("--mini-batch", "1"),  # two updates
    *("--micro-batch-tokens", "20"),  # two micro-batches per update
    *("--max-new-tokens", "6"),
]
RUNS = {
    "vllm": ["--method", "dapo", "--engine", "vllm"],  # first: later runs let segments expand
    "delta": ["--recompute"],
    "topk": ["--proxy", "topk", "--proxy-topk", "4"],
    "fipo": ["--method", "fipo", "--importance-cap", "2"],
}
FOLLOWS_POLICY = "fipo"  # checking its weights waits for the GPU in every micro-batch


def every_other_right(responses: list[str], *_) -> list[float]:
    """Replaces train.training_rewards, so that every group has an advantage."""
    return [float(i % 2) for i in range(len(responses))]


def trained(folder, flags: list[str]) -> tuple[dict, int]:
    """(metrics of a step with two updates, number of waits in its updates)."""
    prepared = train.prepare(small_config(folder, *SMALL, *flags, steps=2))
    assert prepared.policy.packed
    update, found = train.update, {}

    def watched(*arguments):
        before = waits.total()
        metrics = update(*arguments)
        found[waits.total() - before] = metrics
        return metrics

    with (
        patch.object(train, "update", watched),
        patch.object(train, "training_rewards", every_other_right),
    ):
        train.train_step(prepared, 1)
    unlock(folder)
    ((waited, metrics),) = found.items()
    return metrics, waited


def mesh_of_two_nodes() -> None:
    """Run ranks.device_mesh for two nodes: the time limit of NCCL is set for both groups."""
    groups = ["between nodes", "inside a node"]
    mesh = SimpleNamespace(device_type="cuda", get_all_groups=lambda: groups)
    with (
        patch.object(ranks, "init_device_mesh", lambda *_, **__: mesh),
        patch.object(ranks.dist, "get_world_size", lambda: 4),
        patch.object(ranks, "limit_nccl") as limited,
        patch.dict("os.environ", LOCAL_WORLD_SIZE="2"),
    ):
        assert ranks.device_mesh() is mesh
    assert [call.args[0] for call in limited.call_args_list] == groups


def first_hour() -> None:
    """Run `bench.py gpu` to its end, on a model with two small layers."""
    config = Qwen3Config(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    sizes = {"LENGTH": 4, "RESPONSES": 8, "MICRO_BATCH": 100, "STEPS": 1}
    with (
        patch.multiple(gpu, **sizes, MODELS=(("0.6B", True),), qwen3=lambda size: config),
        patch.object(gpu, "STEP_FLAGS", gpu.STEP_FLAGS.replace("128", "4")),
    ):
        steps, stages = gpu.gpu(SimpleNamespace(repetitions=1))
    assert steps["steps"]["micro-batches"] == "packed"
    assert list(stages["seconds"]) == ["sampling", "old_logprobs", "coefficients", "update"]


@pytest.fixture(scope="module")
def pretended_runs(tmp_path_factory):
    """(lines that ran on the simulated GPU, {run of RUNS: result of `trained`})."""
    ranks.start_ranks()
    folder = tmp_path_factory.mktemp("pretended")
    found = {}

    def everything():
        with pretended(), installed():
            start_with_nccl()
            shard_for_gpus()
            mesh_of_two_nodes()
            for name, flags in RUNS.items():
                found[name] = trained(folder / name, flags)
            on_host = room_for(3, on_gpu(torch.zeros(1, 2)), budget_gb=0.0)
            assert not is_on_gpu(on_host)
            first_hour()

    return lines_of(everything), found


def test_every_gpu_branch_runs_on_the_simulated_gpu(pretended_runs):
    lines, _ = pretended_runs
    asked = questions()
    assert len(asked) >= 15
    missing = [place for place, line in asked.items() if line not in lines]
    assert missing == []


# ---- models too large for the GPU ----------------------------------------------------------------


def with_config(folder, base, config):
    """The toy's base model with another model's config.json."""
    lm, tokenizer = base
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)
    return str(folder)


def test_a_model_that_is_too_large_is_refused_before_loading(tmp_path, base, capsys):
    """One line and exit code 2; nothing is written. 8B takes 16 bytes per parameter on one GPU."""
    model = with_config(tmp_path / "8B", base, qwen3("8B"))
    flags = ["--model", model, "--data", "toy", "--eval-data", "", "--output-dir"]
    ranks.start_ranks()
    with pretended(), patch.object(loading, "from_files") as read:
        said = refusal(train.main, [*flags, tmp_path / "run"], capsys)
    assert not read.called
    assert not (tmp_path / "run").exists()
    assert "8.19 billion parameters take at least 131 GB on each of 1 GPUs" in said
    assert "has 80" in said


@pytest.mark.parametrize(
    "size, gpus, refused",
    [
        ("4B", 1, False),  # the lower bound is 64 of 80 GB; the estimate is higher
        ("8B", 1, True),
        ("8B", 2, False),  # 66 GB
        ("14B", 2, True),
        ("14B", 4, False),
    ],
)
def test_only_models_that_cannot_fit_are_refused(size, gpus, refused, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(gpus))
    ranks.start_ranks()
    with pretended():
        with torch.device("meta"):
            lm = AutoModelForCausalLM.from_config(qwen3(size))
        if refused:
            with pytest.raises(UserError, match=f"on each of {gpus} GPUs"):
                refuse_too_large(size, lm)
        else:
            refuse_too_large(size, lm)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_the_estimated_memory_is_never_below_the_lower_bound(gpus):
    flags = train.parse_config(["--max-prompt-tokens", "8", "--max-new-tokens", "8"])
    for size in ("0.6B", "8B"):
        p = planned(qwen3(size), flags, gpus, 80)
        least = least_bytes(sizes_of(qwen3(size)).parameters, gpus)
        assert least < max(p.rollout, p.update)


# ---- waits for the GPU ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_an_update_waits_only_for_its_gradient_norm(name, pretended_runs):
    """A step with two updates waits a third time, for the sums over both updates."""
    _, found = pretended_runs
    metrics, waited = found[name]
    assert metrics["grad_norm"] > 0
    assert metrics["skipped_updates"] == 0
    if name != FOLLOWS_POLICY:
        assert waited == 2 + 1


def test_sampling_waits_once_per_token(base):
    """Both lengths have the same number of waits at the ends of token chunks."""
    lm = copy.deepcopy(base[0]).bfloat16()
    counted = []
    with pretended():
        lm = lm.to(CUDA)
        for length in (10, 30):
            before = waits.total()
            responses = sampled(lm, [length] * 4)
            assert [len(response) for response in responses] == [length] * 4
            counted.append(waits.total() - before)
    assert counted[1] - counted[0] == 20


# ---- the rules -----------------------------------------------------------------------------------


def test_the_simulated_gpu_refuses_what_cuda_refuses():
    host = torch.arange(4.0)
    with pretended():
        gpu = host.to(CUDA)
        assert gpu.is_cuda and gpu.device == CUDA and (gpu + 1).is_cuda
        with pytest.raises(RuntimeError, match="same device"):
            gpu + host
        with pytest.raises(RuntimeError, match="same device"):
            host[torch.ones(1, dtype=torch.long, device=CUDA)]
        with pytest.raises(TypeError, match="numpy"):
            gpu.numpy()
        assert torch.equal((gpu * host.sum()).cpu(), 6 * host)  # a number may be on either device


WAITING = {
    "a number": lambda gpu: float(gpu.sum()),
    "a question": lambda gpu: bool((gpu > 1).any()),
    "a list": lambda gpu: gpu.tolist(),
    "a copy to the host": lambda gpu: gpu.cpu(),
    "a copy from the host": lambda gpu: torch.ones(4).to(gpu.device),
    "a tensor of numbers": lambda gpu: torch.tensor([1.0], device=gpu.device),
    "a mask": lambda gpu: gpu[gpu > 1],
    "an index on the host": lambda gpu: gpu[torch.tensor([1])],
    "a list as an index": lambda gpu: gpu[[1, 2]],
    "sizes": lambda gpu: torch.ones_like(gpu).repeat_interleave(gpu.long()),
}
NOT_WAITING = {
    "arithmetic": lambda gpu: (gpu * 2).sum() / 3,
    "tensors created there": lambda gpu: torch.zeros(3, device=gpu.device) + gpu.new_zeros(3),
    "an index": lambda gpu: gpu[torch.arange(2, device=gpu.device)],
    "a slice": lambda gpu: gpu[1:3],
    "uploaded": lambda gpu: uploaded(torch.ones(4), gpu.device) + gpu,
    "another dtype": lambda gpu: gpu.bfloat16().float(),
}


@pytest.mark.parametrize(
    "what, times", [*((x, 1) for x in WAITING), *((x, 0) for x in NOT_WAITING)]
)
def test_the_simulated_gpu_counts_waits(what, times):
    with pretended():
        gpu = torch.arange(4.0).to(CUDA)
        waits.clear()
        (WAITING | NOT_WAITING)[what](gpu)
        assert waits.total() == times


def test_simulated_attention_and_its_gradient_match_torch():
    """Compared with torch's attention on one sequence at a time; two query heads per key head."""
    torch.manual_seed(0)
    lengths = [3, 5]
    q, k, v = (torch.randn(8, heads, 4).bfloat16() for heads in (4, 2, 2))
    upstream = torch.randn(8, 4, 4).bfloat16()
    with pretended():
        here = [x.to(CUDA).requires_grad_() for x in (q, k, v)]
        bounds = torch.tensor([0, 3, 8], dtype=torch.int32, device=CUDA)
        out = varlen_attn(*here, bounds, bounds, 5, 5, window_size=(-1, 0), enable_gqa=True)
        out.backward(upstream.to(CUDA))
        found = [x.detach().cpu() for x in (out, *(each.grad for each in here))]

    there = [x.float().requires_grad_() for x in (q, k, v)]
    parts = zip(*(x.split(lengths) for x in there), strict=True)
    rows = []
    for part in parts:
        heads = [x.transpose(0, 1)[None] for x in part]
        rows.append(scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0])
    expected = torch.cat([x.transpose(0, 1) for x in rows])
    expected.backward(upstream.float())
    for ours, wanted in zip(found, (expected, *(each.grad for each in there)), strict=True):
        torch.testing.assert_close(ours.float(), wanted.detach(), rtol=0.02, atol=0.02)
