"""infra/loading.py: loading a model by name, and refusing names without a model."""

import copy
import json
import shutil
from math import nan
from pathlib import Path

import pytest
import torch
from architectures import save_random_model
from forked import finished, torchrun
from infra.loading import BOUNDS, load_model, load_policy, refuse_difference
from infra.model_files import locate
from infra.policy import Policy
from safetensors.torch import load_file, save_file
from toy_runs import same_weights
from transformers import AutoModelForCausalLM

import toy
import train
from infra import model_files
from infra.errors import UserError
from infra.ranks import full_tensor, start_ranks

HERE = Path(__file__).parent


@pytest.fixture
def ranks():
    start_ranks()


@pytest.fixture
def base_copy(tmp_path):
    """A folder with the toy's base model, to be damaged."""
    return shutil.copytree(toy.base_folder(), tmp_path / "model")


def change_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | changes))


# ---- loading -----------------------------------------------------------------------------------


def test_load_model_returns_the_weights_in_the_folder(base):
    model, tokenizer = load_model(str(toy.base_folder()))
    assert same_weights(model, base[0])
    assert tokenizer.eos_token == "<eos>"
    assert not model.training


def test_load_policy_reproduces_the_models_log_probabilities(ranks, base, batch):
    """This includes the rotary embeddings, which are not stored in any file."""
    policy, tokenizer = load_policy(toy.base_folder(), temperature=0.7, recompute=False)
    lengths = (batch.prompt_length, batch.response_length)
    with torch.no_grad():
        expected = Policy(base[0], 0.7)(batch.ids, *lengths).logprob
        ours = policy(batch.ids, *lengths).logprob
    torch.testing.assert_close(ours.cpu(), expected)
    assert same_weights(policy.lm, base[0])
    assert tokenizer.eos_token == "<eos>"


def test_load_policy_with_recomputation_changes_no_gradient(ranks, batch):
    gradients = []
    for recompute in (False, True):
        policy, _ = load_policy(toy.base_folder(), recompute=recompute)
        policy(batch.ids, batch.prompt_length, batch.response_length).logprob.sum().backward()
        gradients.append([p.grad.to_local() for p in policy.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain)


def test_load_policy_ties_the_head_to_the_embedding_if_the_config_says_so(ranks, base_copy, batch):
    """The tied model's folder has no LM head, but the policy has one."""
    model, _ = load_model(str(base_copy))
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(base_copy)

    policy, _ = load_policy(base_copy, recompute=False)
    lengths = (batch.prompt_length, batch.response_length)
    tied, _ = load_model(str(base_copy))
    with torch.no_grad():
        expected = Policy(tied)(batch.ids, *lengths).logprob
        torch.testing.assert_close(policy(batch.ids, *lengths).logprob.cpu(), expected)
    assert len(list(policy.parameters())) == len(list(tied.parameters()))


def test_plain_follows_the_updates(ranks, base, batch):
    """The sampling model has the weights of the trained model, before and after a step."""
    policy, _ = load_policy(toy.base_folder(), recompute=False)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    before = policy.head().clone()
    policy(batch.ids, batch.prompt_length, batch.response_length).logprob.sum().backward()
    optimizer.step()

    after = policy.head()
    assert not torch.equal(after, before)
    with policy.plain() as lm:
        assert torch.equal(lm.lm_head.weight.detach(), after)
        with torch.no_grad():
            logits = lm(batch.ids[:1]).logits
    moved = Policy(copy.deepcopy(base[0]))
    moved.lm.load_state_dict({name: full_tensor(x) for name, x in policy.lm.state_dict().items()})
    with torch.no_grad():
        torch.testing.assert_close(logits, moved.lm(batch.ids[:1]).logits)


@pytest.mark.parametrize("of_a_node, dimensions", [("2", 1), ("1", 2)])
def test_weights_on_two_ranks_match_the_files(of_a_node, dimensions, tmp_path):
    """A mixture of experts, whose tensors from_pretrained joins, on one and two nodes (HSDP)."""
    save_random_model("mixtral", tmp_path)
    script = str(HERE / "load_on_ranks.py")
    done = finished(torchrun(2, script, str(tmp_path), of_a_node))
    assert done.stdout.splitlines() == [f"weights 0 log p True mesh {dimensions}"] * 2


def change_weights(folder, change):
    """Rewrite model.safetensors with change(dictionary of its tensors)."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def tied_under_other_names(folder):
    """Store the tied weights only as lm_head."""
    change_config(folder, tie_word_embeddings=True)
    change_weights(folder, lambda tensors: {k: v for k, v in tensors.items() if "embed" not in k})


def without_prefix(folder):
    change_weights(folder, lambda ts: {k.removeprefix("model."): v for k, v in ts.items()})


def halved(folder):
    """Store some tensors in float16 and the others in float32, so the model needs float32."""
    change_weights(folder, lambda ts: {k: v.half() if "_proj" in k else v for k, v in ts.items()})


def called_bfloat16(folder):
    """Change the dtype in config.json only: the dtype in the weight files takes precedence."""
    change_config(folder, dtype="bfloat16")


def with_stale_shards(folder):
    """Add shards with other weights: from_pretrained prefers model.safetensors."""
    other = AutoModelForCausalLM.from_pretrained(folder)
    other.lm_head.weight.data += 1
    other.save_pretrained(folder / "other", max_shard_size="20KB")
    for path in (folder / "other").glob("model*"):
        shutil.move(path, folder)


@pytest.mark.parametrize(
    "change", [tied_under_other_names, without_prefix, halved, called_bfloat16, with_stale_shards]
)
def test_weights_match_from_pretrained_bit_for_bit(change, ranks, base_copy):
    change(base_copy)
    expected = AutoModelForCausalLM.from_pretrained(base_copy, dtype=torch.float32)
    for lm in (load_policy(base_copy, temperature=1e-4)[0].lm, load_model(base_copy)[0]):
        assert same_weights(lm, expected)


def test_no_model_uses_cudnn_attention(ranks):
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_model(toy.base_folder())
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_policy(toy.base_folder())
    assert not torch.backends.cuda.cudnn_sdp_enabled()


# ---- wrong files: a one-line error in training and evaluation ------------------------------------


def write(name, content):
    def change(folder):
        (folder / name).write_bytes(content)

    return change


def config(**changes):
    def change(folder):
        change_config(folder, **changes)

    return change


def cut_off(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without_a_shard(folder):
    with_stale_shards(folder)
    (folder / "model.safetensors").unlink()
    min(folder.glob("model-0*")).unlink()


def without_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


def damaged(folder):
    change_weights(folder, lambda tensors: tensors | {"model.norm.weight": torch.full((64,), nan)})


def lacking(folder):
    change_weights(folder, lambda ts: {k: v for k, v in ts.items() if "q_proj" not in k})


def with_too_much(folder):
    change_weights(folder, lambda tensors: tensors | {"score.weight": torch.ones(2)})


WRONG = [
    (write("model.safetensors", b""), "model.safetensors is damaged or cut off"),
    (cut_off, "model.safetensors is damaged or cut off"),
    (write("model.safetensors", b"version https://git-lfs.github.com/spec/v1"), "git lfs pull"),
    (without_a_shard, "No such file or directory: "),
    (write("generation_config.json", b"{no"), "cannot read generation_config.json"),
    (write("generation_config.json", b"[1]"), "cannot read generation_config.json"),
    (write("generation_config.json", b'{"eos_token_id": "</s>"}'), "eos_token_id"),
    (write("config.json", b"{"), "cannot read config.json"),
    (config(hidden_size="64"), "hidden_size"),
    (config(model_type="nonsense"), "nonsense"),
    (config(rope_parameters={"rope_type": "nope"}), "nope"),
    (config(intermediate_size=96), "mlp.down_proj.weight has another shape"),
    (config(tie_word_embeddings=True), "config.json ties lm_head.weight"),
    (lacking, "model.layers.0.self_attn.q_proj.weight is missing (2 in all)"),
    (with_too_much, "score.weight has no place in the model"),
    (damaged, "model.norm.weight holds NaN"),
    (write("tokenizer.json", b"{}"), "cannot read the tokenizer"),
    (write("tokenizer_config.json", b"[]"), "cannot read the tokenizer"),
    (without_tokenizer, "no tokenizer in"),
]


@pytest.mark.parametrize("change, said", WRONG, ids=[said for _, said in WRONG])
def test_wrong_files_get_a_one_line_error(change, said, ranks, base_copy, capfd):
    change(base_copy)
    for load in (load_policy, load_model):
        with pytest.raises(UserError) as error:
            load(base_copy)
        assert said in str(error.value)
        assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""  # the library prints no progress bar or report


def test_attention_heads_of_different_sizes_are_refused(ranks, base_copy):
    kinds = {"model_type": "gemma4_text", "layer_types": ["sliding_attention", "full_attention"]}
    change_config(base_copy, **kinds, head_dim=16, global_head_dim=32, sliding_window=8)
    with pytest.raises(UserError, match="one size for all attention heads"):
        load_policy(base_copy)


# ---- names without a model ---------------------------------------------------------------------


def test_the_message_for_an_unreachable_hub_id_says_how_to_pass_a_folder(monkeypatch, capsys):
    def no_network(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(model_files, "snapshot_download", no_network)
    with pytest.raises(SystemExit) as stopped:
        train.main(["--model", "some/where", "--data", "toy", "--eval-data", ""])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "some/where" in error
    assert "without a network" in error
    assert "hf download" in error


def test_locate_refuses_a_folder_without_a_model(tmp_path):
    with pytest.raises(UserError, match="no model in this folder"):
        locate(tmp_path)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_only_a_mean_difference_within_rounding_passes_the_check(dtype):
    expected = torch.full((48,), -2.0)
    shifted = expected.clone()
    shifted[::2] += 1.8 * BOUNDS[dtype]  # 0.9 times the bound on average
    refuse_difference("m", "this model", shifted, expected, dtype)
    for wrong in (1.1 * BOUNDS[dtype], -1.1 * BOUNDS[dtype], torch.nan):
        with pytest.raises(UserError, match="--model m: log-probabilities of this model"):
            refuse_difference("m", "this model", expected + wrong, expected, dtype)
