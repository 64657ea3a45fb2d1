"""infra/loading.py: from a name to a model, and names that lead nowhere."""

import copy
import json
import shutil

import pytest
import torch
from toy_runs import same_weights

import toy
import train
from infra import loading
from infra.errors import UserError
from infra.loading import load_model, load_policy, locate
from infra.policy import Policy
from infra.ranks import full_tensor, start_ranks


@pytest.fixture
def ranks():
    start_ranks()


@pytest.fixture
def base_copy(tmp_path):
    """A folder with the toy's base model, to be spoilt."""
    return shutil.copytree(toy.base_folder(), tmp_path / "model")


def change_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | changes))


# ---- what is loaded ----------------------------------------------------------------------------


def test_load_model_gives_the_weights_of_the_folder(base):
    model, tokenizer = load_model(str(toy.base_folder()))
    assert same_weights(model, base[0])
    assert tokenizer.eos_token == "<eos>"
    assert not model.training


def test_load_policy_gives_the_log_probabilities_of_the_model(ranks, base, batch):
    """Weights, and the rotary embeddings, which stand in no file."""
    policy, tokenizer = load_policy(toy.base_folder(), temperature=0.7, recompute=False)
    lengths = (batch.prompt_length, batch.response_length)
    with torch.no_grad():
        expected = Policy(base[0], 0.7)(batch.ids, *lengths).logprob
        ours = policy(batch.ids, *lengths).logprob
    torch.testing.assert_close(ours.cpu(), expected)
    assert same_weights(policy.lm, base[0])
    assert tokenizer.eos_token == "<eos>"


def test_load_policy_recomputation_changes_no_gradient(ranks, batch):
    gradients = []
    for recompute in (False, True):
        policy, _ = load_policy(toy.base_folder(), recompute=recompute)
        policy(batch.ids, batch.prompt_length, batch.response_length).logprob.sum().backward()
        gradients.append([p.grad.to_local() for p in policy.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain)


def test_load_policy_compiled_layers_change_no_number(ranks, batch, monkeypatch):
    """With dynamo's tracing but not its compiler, which takes minutes; the sampler stays plain."""
    compile_module = torch.nn.Module.compile

    def traced(module, **options):
        compile_module(module, backend="eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", traced)
    results = []
    for compiled in (False, True):
        policy, _ = load_policy(toy.base_folder(), recompute=True, compiled=compiled)
        rows = policy.rows(batch, torch.tensor([0, 3, 4]))
        rows.logprob.sum().backward()
        gradients = [full_tensor(p.grad) for p in policy.parameters()]
        results.append((rows.logprob.detach(), gradients))
        for layer in policy.lm.model.layers:
            assert (layer._compiled_call_impl is not None) == compiled
        for layer in policy.twin[0].model.layers:
            assert layer._compiled_call_impl is None

    (logprob, gradients), (of_compiled, gradients_of_compiled) = results
    torch.testing.assert_close(of_compiled, logprob, rtol=1e-4, atol=1e-5)
    for ours, expected in zip(gradients_of_compiled, gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


def test_load_policy_ties_the_head_to_the_embedding_where_the_config_says_so(
    ranks, base_copy, batch
):
    """Then the folder holds no LM head, and the policy has one all the same."""
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
    """The model that samples has the weights of the one that is trained, after a step as before."""
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


# ---- names that lead nowhere -------------------------------------------------------------------


def test_a_hub_id_out_of_reach_says_how_to_pass_a_folder(monkeypatch, capsys):
    def no_network(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(loading, "snapshot_download", no_network)
    with pytest.raises(SystemExit) as stopped:
        train.main(["--model", "some/where", "--data", "toy", "--eval-data", ""])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "some/where" in error
    assert "no network" in error
    assert "hf download" in error


def test_locate_refuses_a_folder_without_a_model(tmp_path):
    with pytest.raises(UserError, match="no model in such a folder"):
        locate(tmp_path)


@pytest.mark.parametrize("changes", [{"intermediate_size": 96}, {"num_hidden_layers": 3}])
def test_load_policy_refuses_weights_that_do_not_fit_the_config(ranks, base_copy, changes):
    """Weights of another shape, and a layer that is in no file."""
    layers = json.loads((base_copy / "config.json").read_text()).get("layer_types")
    if "num_hidden_layers" in changes and layers:
        changes = changes | {"layer_types": layers + layers[:1]}
    change_config(base_copy, **changes)
    with pytest.raises(UserError, match="its safetensors do not fit its config.json"):
        load_policy(base_copy)
