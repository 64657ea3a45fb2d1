"""Tests trl_delta.py with the real TRL 1.16: `make engines`."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial

import pytest
from forked import ROOT

pytest.importorskip("trl")
pytestmark = pytest.mark.engine

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOTrainer
from trl.scripts import grpo
from trl_worker import TOY, WEIGHTS, compared, share_unlike, trainer_of

import toy
import trl_delta
from config import Config
from infra.errors import UserError
from trl_delta import WeightedTrainer


@pytest.fixture(scope="module", params=[1, 2], ids=["one_rank", "two_ranks"])
def comparison(request, tmp_path_factory) -> dict:
    """The numbers of trl_worker.compared."""
    if request.param == 1:
        return compared()
    path = tmp_path_factory.mktemp("trl") / "compared.json"
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    subprocess.run(
        [sys.executable, *words, "tests/engines/trl_worker.py", path], cwd=ROOT, check=True
    )
    return json.loads(path.read_text())


def test_a_range_of_one_is_trls_own_run_bit_for_bit(comparison):
    assert comparison["same_metrics"]
    assert comparison["same_parameters"]
    assert 0 < comparison["rewards"][0] < 1  # there was something to learn


@pytest.mark.parametrize("i", range(len(WEIGHTS)), ids=[str(each) for each in WEIGHTS])
@pytest.mark.parametrize("rewards", [0, 1], ids=["0_and_1", "0.1_and_0.3"])
def test_the_weights_are_those_of_our_loop(comparison, rewards, i):
    assert comparison["unlike"][rewards][i] < 0.01


def test_trls_advantages_of_equal_rewards_are_rounding(comparison):
    exact, rounded = comparison["advantages"]
    for each in (exact, rounded):
        assert min(each) < -0.1 and max(each) > 0.1
    assert 0 in exact and 0 not in rounded and min(map(abs, rounded)) < 1e-3


def save_closed_by_signs(lm, folder) -> None:
    """Save lm with the toy's tokenizer. The chat template closes turns with the special token `=`.

    The tag <think> is a special token, too.
    """
    _, tokenizer = toy.base_model()
    tokenizer.add_special_tokens({"extra_special_tokens": ["=", "<think>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}={% endfor %}"
    for part in (lm, tokenizer):
        part.save_pretrained(folder)


@pytest.fixture
def closed_by_signs(tmp_path):
    """The toy's trainer, with this chat template."""
    save_closed_by_signs(toy.base_model()[0], tmp_path / "signs")
    return trainer_of(WeightedTrainer, tmp_path / "signs", Config())


def one_batch(trainer) -> dict:
    return trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))


def assert_signs_end(batch: dict) -> None:
    """Some completions end with `=`, and none goes on after it."""
    is_end = batch["completion_ids"] == toy.TOKEN_ID["="]  # [B, T]
    before_last = batch["completion_mask"][:, 1:].bool() & is_end[:, :-1]
    assert is_end.any() and not before_last.any()


def test_the_turn_end_of_the_chat_template_ends_a_completion(closed_by_signs):
    assert_signs_end(one_batch(closed_by_signs))


def test_vllm_samples_from_the_trainers_model_and_ends_there_too(tmp_path, monkeypatch):
    """vLLM in the trainer's process, before any update.

    On a CPU, vLLM needs heads of 32 numbers. It cannot take new weights after it repacked them.
    """
    vllm = pytest.importorskip("vllm")
    from trl.generation import vllm_generation

    quick = {"enforce_eager": True, "dtype": "float32", "kv_cache_memory_bytes": 2**28}
    monkeypatch.setattr(vllm_generation, "LLM", partial(vllm.LLM, **quick))
    monkeypatch.setattr(vllm_generation.VLLMGeneration, "sync_weights", lambda self: None)
    config = toy.base_model()[0].config.to_dict() | {"head_dim": 32}
    save_closed_by_signs(Qwen3ForCausalLM(Qwen3Config(**config)), tmp_path / "wide")
    flags = "--use_vllm true --vllm_max_model_length 128"
    trainer = trainer_of(WeightedTrainer, tmp_path / "wide", Config(proxy="scalar"), flags)
    trainer.model.train()
    batch = one_batch(trainer)
    mask = batch["completion_mask"].bool()
    assert batch["advantages"].shape == mask.shape
    apart = batch["old_per_token_logps"] - batch["sampling_per_token_logps"]
    assert apart[mask].abs().mean() < 1e-6
    assert_signs_end(batch)


def test_the_saved_model_ends_there_too(closed_by_signs, tmp_path):
    closed_by_signs.save_model(str(tmp_path / "saved"))
    ends = GenerationConfig.from_pretrained(tmp_path / "saved").eos_token_id
    assert ends == sorted([toy.TOKEN_ID["<eos>"], toy.TOKEN_ID["="]])


def test_a_model_that_cannot_be_saved_is_not_trained(tmp_path):
    """transformers does not save this odd config once it is changed, as TRL and we change it."""
    model = shutil.copytree(toy.BASES["sharpen"], tmp_path / "odd")
    odd = {"do_sample": False, "temperature": 0.9, "top_p": 0.6}  # Llama 2
    (model / "generation_config.json").write_text(json.dumps(odd))
    with pytest.raises(UserError, match="odd: transformers cannot save its generation_config.json"):
        trainer_of(WeightedTrainer, model, Config())
    adapters = {"peft_config": LoraConfig(target_modules=["q_proj"])}
    trainer = trainer_of(partial(WeightedTrainer, **adapters), model, Config())
    trainer.save_model(str(tmp_path / "adapters"))
    assert (tmp_path / "adapters/adapter_model.safetensors").exists()


def test_reward_functions_read_special_tags_of_thought(closed_by_signs):
    tokenizer = closed_by_signs.processing_class
    ids = tokenizer(["<think>\\boxed{7}=<eos>"]).input_ids
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == ["<think>\\boxed{7}"]


@pytest.mark.parametrize("gold", ["72", 72, "24 + 48.\n#### 72", "It is $\\boxed{72}$."])
def test_a_worked_solution_is_a_gold_answer(gold):
    chat = [{"role": "assistant", "content": "It is \\boxed{24}"}]
    assert trl_delta.right(["\\boxed{72}", chat], [gold, gold]) == [1.0, 0.0]


@pytest.mark.parametrize(
    "row, said",
    [
        ({"gold": "2"}, "--dataset_name has no column solution or answer, only prompt, gold"),
        ({"solution": ["2"]}, "--dataset_name, record 1, column solution, holds a list"),
        ({"answer": True}, "--dataset_name, record 1, column answer, holds a bool"),
        ({"answer": None}, "1 of 1 gold answers can never be matched; the first is record 1"),
        ({"answer": "proof"}, "1 of 1 gold answers can never be matched"),
        ({"solution": "This is a proof. Nothing else follows."}, "1 of 1 gold answers can never"),
    ],
)
def test_golds_are_checked_before_training(row, said):
    data = Dataset.from_list([{"prompt": "1+1=?"} | row])
    with pytest.raises(UserError, match=said):
        WeightedTrainer(cfg=Config(), reward_funcs=[trl_delta.right], train_dataset=data)


def test_the_column_may_be_called_answer():
    trl_delta.refuse_golds(Dataset.from_list([{"prompt": "1+1=?", "answer": "2"}]))
    assert trl_delta.right(["\\boxed{2}", "\\boxed{3}"], answer=["2", 2]) == [1.0, 0.0]


def test_an_answer_fills_an_empty_solution():
    cells = {"solution": ["", None, "3"], "answer": ["2", 2, "proof"]}
    trl_delta.refuse_golds(Dataset.from_dict({"solution": ["", None, "3"], "answer": 3 * ["2"]}))
    assert trl_delta.right(["\\boxed{3}", "\\boxed{2}", "\\boxed{3}"], **cells) == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "message, expected",
    [
        ({"content": None, "tool_calls": []}, 0.0),
        ({"tool_calls": []}, 0.0),
        ({"content": [{"type": "text", "text": "\\boxed{"}, {"type": "text", "text": "2}"}]}, 1.0),
    ],
)
def test_a_message_may_have_no_text_or_parts(message, expected):
    assert trl_delta.right([[{"role": "assistant"} | message]], ["2"]) == [expected]


def test_advantages_of_equal_rewards_are_exactly_0():
    groups = [
        [-7e-5] * 4,
        [3e-4, 0, 0, 3e-4],
        [-1.5, 0.5, 0.5, 0.5],
        [0.0] * 4,
    ]  # TRL's 0: no reward
    found = trl_delta.without_rounding(torch.tensor(groups).view(-1), 4)
    assert found.tolist() == [0.0] * 8 + groups[2] + [0.0] * 4


def characters(completions: list[str], **_) -> list[float]:
    """A stand-in for the reward, a response's length: short responses would all be wrong."""
    return [float(len(text)) for text in completions]


@pytest.mark.skipif("MODEL" not in os.environ, reason="make engines MODEL=...")
def test_the_weights_of_a_real_model_are_those_of_our_loop():
    """The model's eight responses answer one prompt."""
    flags = "--max_completion_length 16 --per_device_train_batch_size 8 --steps_per_generation 1"
    model = os.environ["MODEL"]
    trainer = trainer_of(trl_delta.WeightedTrainer, model, Config(), flags, characters)
    trainer.model.train()  # as in an update
    examples = next(iter(trainer.get_train_dataloader()))
    batch = GRPOTrainer._generate_and_score_completions(trainer, examples)
    batch["tool_mask"] = torch.ones_like(batch["completion_mask"])
    assert batch["advantages"].std() > 0.5
    assert share_unlike(trainer, batch, {}) < 0.01


# ---- the script ----------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """run(folder of the model, *flags) returns the rewards of trl_delta.py's generation batches."""
    monkeypatch.setattr(trl, "GRPOTrainer", GRPOTrainer)  # main replaces it
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"prompt": x["problem"], "solution": x["answer"]} for x in toy.problems(512)]
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def rewards(model, *flags: str) -> list[float]:
        paths = ["--model_name_or_path", model, "--dataset_name", data, "--output_dir", tmp_path]
        trl_delta.main([*map(str, paths), *(TOY + UPDATES).split(), *flags])
        return [float(x) for x in re.findall(r"'reward': '([\d.]+)'", capsys.readouterr().out)]

    return rewards


UPDATES = "--per_device_train_batch_size 32 --steps_per_generation 4 --learning_rate 3e-4"


@pytest.mark.parametrize("more", [[], ["--load_in_4bit", "true"]])
def test_adapters_are_trained(more, run, tmp_path):
    """PEFT wraps the model, whose head and hidden states the proxy needs."""
    if more:
        pytest.importorskip("bitsandbytes")
    flags = ["--use_peft", "true", "--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj"]
    (reward,) = run(toy.BASES["sharpen"], "--max_steps", "2", "--proxy", "topk", *flags, *more)
    assert 0 < reward < 1
    weights = load_file(tmp_path / "adapter_model.safetensors")
    assert all(x.any() for name, x in weights.items() if "lora_B" in name)  # these start at 0


def test_the_methods_clip_range_is_trls(monkeypatch):
    """The flags reach TRL's script, where --epsilon and --epsilon_high may still change them."""
    reached = []
    monkeypatch.setattr(trl, "GRPOTrainer", GRPOTrainer)
    monkeypatch.setattr(grpo, "main", lambda *parts: reached.append(parts[1]))
    for flags in ([], ["--method", "dr_grpo"], ["--epsilon_high", "0.5"]):
        trl_delta.main(["--output_dir", "x", "--use_cpu", "true", "--bf16", "false", *flags])
    ranges = [(each.epsilon, each.epsilon_high, each.delta) for each in reached]
    assert ranges == [(0.2, 0.28, 10.0), (0.2, 0.2, 10.0), (0.2, 0.5, 10.0)]


REFUSED = [
    "--method sapo",
    "--method dr_grpo",
    "--delta-variant fixed_gamma",
    "--importance_sampling_level sequence",
    "--importance_sampling_level sequence --loss_type luspo",
]


@pytest.mark.parametrize("flags", REFUSED)
def test_what_trl_cannot_do_is_refused(run, flags):
    with pytest.raises(UserError, match=flags.split()[0]):
        run(toy.BASES["sharpen"], *flags.split())


def test_data_with_images_are_refused(monkeypatch):
    """The second pass would get no images, so every log p would change."""
    batch = {"pixel_values": torch.zeros(1), "completion_mask": torch.ones(1, 2)}
    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", lambda *_: batch)
    trainer = object.__new__(trl_delta.WeightedTrainer)
    trainer.model = torch.nn.Linear(1, 1)
    with pytest.raises(UserError, match="has images"):
        trainer._generate_and_score_completions([{}])
    trainer.model.eval()  # an evaluation has no token weights
    assert trainer._generate_and_score_completions([{}]) is batch
