"""Any causal language model: training and sampling use the model that from_pretrained returns.

Each architecture of EXACT (architectures.py) is compared with its plain forward pass, one sequence
at a time. Each architecture of REFUSED is refused in training with a one-line message. Sliding
windows have 8 tokens; responses have 30.
"""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from architectures import EVALUATED, EXACT, WHY, random_ids, save_random_model, small_config
from infra.checkpoints import RunState
from infra.loading import load_model, load_policy
from infra.model_files import most_tokens, refuse_length, refuse_model
from infra.packed_attention import VARLEN
from infra.policy import Policy
from references import slow_varlen_attn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

import ablations
import evaluate
import rollout as rollout_module
import toy
import train
from infra import cache, loading, packed_attention
from infra import policy as policy_module
from infra.errors import UserError
from infra.ranks import full_tensor, start_ranks
from rollout import Sampling, random_numbers, rollout, token_distribution
from train import clip_and_step

TEMPERATURE = 0.7
PROMPTS = [random_ids(5), random_ids(11, seed=1)]
RESPONSES = [random_ids(30, seed=2), random_ids(19, seed=3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A function: architecture -> its model's folder, created on first use."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            save_random_model(name, made[name])
        return made[name]

    return of


@pytest.fixture(scope="module")
def policies(folder):
    """A function: architecture -> its training policy, with recomputation. Read-only."""
    start_ranks()
    loaded = {}

    def of(name):
        if name not in loaded:
            loaded[name], _ = load_policy(folder(name), TEMPERATURE, recompute=True)
        return loaded[name]

    return of


def plain_model(folder):
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def packed(policy):
    """The policy's rows for RESPONSES to PROMPTS, computed as one padded batch."""
    pairs = list(zip(PROMPTS, RESPONSES, strict=True))
    ids = pad_sequence([torch.cat(pair) for pair in pairs], batch_first=True)
    prompt_length = torch.tensor([len(prompt) for prompt, _ in pairs])
    response_length = torch.tensor([len(response) for _, response in pairs])
    return policy(ids, prompt_length, response_length)


def plain_rows(lm):
    """(log-probabilities, entropies) of the same tokens, one unpadded sequence at a time."""
    logprobs, entropies = [], []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        logits = lm(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
        logp = (logits.float() / TEMPERATURE).log_softmax(-1)
        logprobs.append(logp.gather(1, response[:, None]).squeeze(1))
        entropies.append(-(logp.exp() * logp).sum(1))
    return torch.cat(logprobs), torch.cat(entropies)


@pytest.mark.parametrize("name", EXACT)
def test_policy_rows_match_the_plain_model(name, folder, policies):
    with torch.no_grad():
        ours = packed(policies(name))
        logprob, entropy = plain_rows(plain_model(folder(name)))
    torch.testing.assert_close(ours.logprob, logprob, rtol=0, atol=1e-4)
    torch.testing.assert_close(ours.entropy, entropy, rtol=0, atol=1e-4)


PADDED = {"gemma2", "bloom", "gpt_neox_japanese"}  # capped scores, ALiBi, its own attention code
BY_MASK = PADDED | {"opt"}  # opt computes positions from its own mask
BY_KERNEL = PADDED | {"stablelm"}  # stablelm's layers do not pass on sequence starts


def pack_as_on_gpus(policy, packed):
    policy.packed = packed
    policy.lm.set_attn_implementation(VARLEN if packed else policy.own_attention)


@pytest.mark.parametrize("on_kernel", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_policies_pack_if_results_do_not_change(name, on_kernel, folder, policies, monkeypatch):
    """Both with transformers' mask and with the GPU code (heads, windows, bounds)."""
    monkeypatch.setattr(packed_attention, "varlen_attn", slow_varlen_attn)
    policy = policies(name)
    if on_kernel:
        monkeypatch.setattr(Policy, "pack", pack_as_on_gpus)
    try:
        loading.pack_where_equal(policy)
        assert policy.packed == (name not in (BY_KERNEL if on_kernel else BY_MASK))
        if policy.packed:
            with torch.no_grad():
                logprob, _ = plain_rows(plain_model(folder(name)))
                torch.testing.assert_close(packed(policy).logprob, logprob, rtol=0, atol=1e-4)
    finally:
        policy.pack(False)


@pytest.mark.parametrize("name", EXACT)
def test_policy_gradients_match_the_plain_model(name, folder, policies):
    """All parameters, through recomputed layers, head, bias, scale and soft cap."""
    upstream = torch.randn(49, generator=torch.Generator().manual_seed(0))
    plain = plain_model(folder(name))
    (plain_rows(plain)[0] * upstream).sum().backward()
    policy = policies(name)
    (packed(policy).logprob * upstream).sum().backward()

    expected = dict(plain.named_parameters())
    for parameter_name, parameter in policy.lm.named_parameters():
        wanted = expected[parameter_name].grad
        if wanted is None:  # unused parts have no gradient
            wanted = torch.zeros_like(expected[parameter_name])
        ours = full_tensor(parameter.grad)
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-4, msg=parameter_name)
        parameter.grad = None


@pytest.mark.parametrize("name", EXACT)
def test_sampled_tokens_follow_the_plain_model(name, folder, policies, monkeypatch):
    """Each token is the inverse CDF of the full sequence's logits at the token's random number.

    Responses are longer than every window. With chunks of 8 tokens and 5 of 8 responses in flight,
    some responses leave while others arrive.
    """
    monkeypatch.setattr(rollout_module, "CHUNK", 8)
    prompts = [prompt.tolist() for prompt in PROMPTS]
    tokenizer = AutoTokenizer.from_pretrained(folder(name))
    with policies(name).plain() as lm:
        sampling = Sampling(30, TEMPERATURE, seed=7, in_flight=5)
        out = rollout(lm, tokenizer, prompts, [0, 1], 4, sampling)

    plain = plain_model(folder(name))
    for i in range(8):
        prompt = prompts[i // 4]
        response = out.response_ids(i)
        with torch.no_grad():
            ids = torch.cat([torch.tensor(prompt), response])[None]
            logits = plain(ids).logits[0, len(prompt) - 1 : -1]
        cdf = token_distribution(logits, TEMPERATURE).cumsum(1)  # [n, V]
        u = torch.from_numpy(random_numbers(7, 0, i // 4, i % 4).random(len(response)))
        expected = torch.searchsorted(cdf, (u * cdf[:, -1])[:, None], right=True).squeeze(1)
        assert response.tolist() == expected.tolist()
    assert max(out.response_length) == 30


@pytest.mark.parametrize("name", EXACT)
def test_ten_updates_change_every_weight_and_the_sampler_follows(name, folder):
    """AdamW maximises the batch's mean log-probability, with recomputation."""
    start_ranks()
    policy, _ = load_policy(folder(name), TEMPERATURE, recompute=True)
    before = {key: full_tensor(p).detach().clone() for key, p in policy.lm.named_parameters()}
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, weight_decay=0.0)
    logprobs = []
    for _ in range(10):
        logprob = packed(policy).logprob.mean()
        (-logprob).backward()
        assert (
            clip_and_step(
                SimpleNamespace(policy=policy, optimizer=optimizer, state=RunState()), 1.0
            )
            > 0
        )
        logprobs.append(float(logprob.detach()))

    assert logprobs[-1] > logprobs[0] + 0.3
    for key, parameter in policy.lm.named_parameters():
        moved = (full_tensor(parameter) - before[key]).abs().max()
        # A key bias shifts all of a query's scores equally, so the softmax does not change.
        assert moved > 1e-3 or key.endswith("k_proj.bias"), key

    with policy.plain() as lm, torch.no_grad():
        expected, _ = plain_rows(lm)
        torch.testing.assert_close(packed(policy).logprob, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["olmo3", "gemma2"])
def test_command_line_training_exports_a_loadable_model(name, folder, tmp_path):
    """Two steps of train.py with recomputation; half of the responses are graded as correct."""
    lines = [json.dumps({"problem": f"{i}+2=?", "answer": "3"}) + "\n" for i in (1, 4)]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(lines))
    flags = f"""--model {folder(name)} --data {data} --output-dir {tmp_path / "run"}
        --steps 2 --prompts 2 --mini-batch 2 --group-size 4 --max-new-tokens 20 --lr 1e-3
        --recompute --eval-every 1 --eval-samples 1"""
    with pytest.MonkeyPatch.context() as patch:
        turns = iter([1.0, 0.0] * 1000)
        patch.setattr(train, "grades", lambda texts, *_: [next(turns) for _ in texts])
        train.main([*flags.split(), "--eval-data", ""])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["grad_norm"] > 0 for row in rows)
    trained = plain_model(tmp_path / "run" / "model").state_dict()
    assert any(
        not torch.equal(weight, trained[key])
        for key, weight in plain_model(folder(name)).state_dict().items()
    )
    load_model(str(tmp_path / "run" / "model"))


# ---- one-line refusals ---------------------------------------------------------------------------


def refusal(call, *arguments):
    """The message of the UserError that call(*arguments) raises. Asserts that it is one line."""
    with pytest.raises(UserError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", WHY)
def test_untrainable_models_are_refused(name, folder):
    start_ranks()
    assert WHY[name] in refusal(load_policy, folder(name))


@pytest.mark.parametrize("name", EVALUATED)
def test_models_refused_only_in_training_are_evaluated(name, folder):
    lm, _ = load_model(folder(name))
    ids = RESPONSES[0][None]
    with torch.no_grad():
        logits = lm(ids).logits
        torch.testing.assert_close(logits, plain_model(folder(name))(ids).logits)


def changed_config(folder, target, **changes):
    """Copy a model's folder with changes in config.json."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    return target


def test_wrappers_and_quantised_models_are_refused(folder, tmp_path):
    vision = changed_config(
        folder("gemma3_text"), tmp_path / "vision", model_type="gemma3", text_config={}
    )
    assert "images or sound" in refusal(load_policy, vision)
    encoder = changed_config(folder("llama"), tmp_path / "encoder", model_type="t5")
    assert "not a causal language model" in refusal(load_policy, encoder)
    fp8 = changed_config(
        folder("llama"), tmp_path / "fp8", quantization_config={"quant_method": "fp8"}
    )
    assert "quantised" in refusal(load_policy, fp8)


@pytest.mark.parametrize("load", [load_policy, load_model])
def test_incomplete_folders_are_refused(load, folder, tmp_path):
    start_ranks()
    only_bin = shutil.copytree(folder("llama"), tmp_path / "bin")
    (only_bin / "model.safetensors").rename(only_bin / "pytorch_model.bin")
    assert "no .safetensors" in refusal(load, only_bin)

    no_tokenizer = shutil.copytree(folder("llama"), tmp_path / "no_tokenizer")
    for path in no_tokenizer.glob("tokenizer*"):
        path.unlink()
    assert "no tokenizer in" in refusal(load, no_tokenizer)

    no_end = changed_config(folder("llama"), tmp_path / "no_end", eos_token_id=None)
    (no_end / "generation_config.json").unlink()
    tokenizer = toy.build_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(no_end)
    assert "the id of an end token" in refusal(load, no_end)

    many_words = shutil.copytree(folder("llama"), tmp_path / "many_words")
    tokenizer = toy.build_tokenizer()
    tokenizer.add_tokens([f"word{i}" for i in range(11)])
    tokenizer.save_pretrained(many_words)
    assert "tokenizer has 41 ids, its embedding 40" in refusal(load, many_words)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_responses_longer_than_the_context_are_refused(name, folder, tmp_path, capsys):
    (tmp_path / "data.jsonl").write_text(json.dumps({"problem": "1+2=?", "answer": "3"}) + "\n")
    flags = ["--model", str(folder(name)), "--max-new-tokens", "124"]
    data = str(tmp_path / "data.jsonl")
    with pytest.raises(SystemExit):
        train.main([*flags, "--data", data, "--eval-data", "", "--output-dir", str(tmp_path / "r")])
    wanted = "--max-new-tokens 124 after a prompt of 5 tokens exceeds the 128 tokens"
    assert wanted in capsys.readouterr().err
    with pytest.raises(SystemExit):
        evaluate.main([*flags, "--benchmarks", data, "--output-dir", str(tmp_path / "e")])
    assert wanted in capsys.readouterr().err


def test_longrope_is_limited_to_its_pretraining_length():
    scheme = {"rope_type": "longrope", "long_factor": [1.0] * 4, "short_factor": [1.0] * 4}
    config = small_config("phi3", rope_parameters=scheme, original_max_position_embeddings=64)
    assert most_tokens(config) == 64
    assert most_tokens(small_config("phi3")) == 128
    assert most_tokens(small_config("bloom", max_position_embeddings=None)) is None


def test_yarn_is_limited_to_the_positions_in_its_config():
    """A scaled-down version of Qwen3's: factor 4, 32 pretraining tokens, 40 config positions."""
    scheme = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    config = small_config("qwen3", rope_parameters=scheme, max_position_embeddings=40)
    refuse_length(config, [[0] * 8], 32)
    with pytest.raises(UserError, match="exceeds the 40 tokens .*raise max_position_embeddings"):
        refuse_length(config, [[0] * 8], 33)

    config.max_position_embeddings = 128
    refuse_length(config, [[0] * 8], 120)


# ---- load-time check for silently wrong models ---------------------------------------------------


@pytest.mark.parametrize("proxy", ["topk", "exact"])
@pytest.mark.parametrize("name", ["phi", "gemma2"])
def test_proxies_that_need_a_matrix_head_are_refused(name, proxy, policies):
    flags = ablations.AblationFlags(proxy=proxy)
    assert "has a bias or a soft cap" in refusal(ablations.check_model, flags, policies(name))
    ablations.check_model(ablations.AblationFlags(proxy="surprise"), policies(name))
    with pytest.raises(ValueError, match="not a matrix times h"):
        policies(name).head()


def test_head_of_a_scaled_model_reproduces_its_logits(folder, policies):
    plain = plain_model(folder("granite"))
    ids = RESPONSES[0][None]
    with torch.no_grad():
        states = plain.base_model(ids).last_hidden_state
        logits = states @ policies("granite").head().T
        torch.testing.assert_close(logits, plain(ids).logits / TEMPERATURE, rtol=1e-4, atol=1e-4)


def test_an_unknown_head_is_refused(folder, monkeypatch):
    start_ranks()
    monkeypatch.setattr(policy_module, "scale_and_cap", lambda config: (1.0, None))
    line = refusal(load_policy, folder("granite"))
    assert "GraniteForCausalLM as trained here differ by" in line


def test_a_model_without_a_matrix_as_its_head_or_without_layers_is_refused(folder):
    lm = AutoModelForCausalLM.from_pretrained(folder("llama"))
    refuse_model("m", lm)
    head, layers = lm.lm_head, lm.model.layers
    lm.lm_head = torch.nn.Sequential(head)
    with pytest.raises(UserError, match="LlamaForCausalLM has no matrix as its head"):
        refuse_model("m", lm)
    lm.lm_head = head
    lm.model.layers = torch.nn.Sequential(*layers)
    with pytest.raises(UserError, match="LlamaForCausalLM has no list of layers"):
        refuse_model("m", lm)


def test_dropout_is_refused(folder, monkeypatch):
    start_ranks()
    monkeypatch.setattr(loading, "recompute_in_backward", lambda layers: layers.train())
    assert "as trained here" in refusal(load_policy, folder("phi3"))


@pytest.mark.parametrize("name", ["gemma", "olmo3", "gemma3_text"])
def test_a_wrong_buffer_is_refused(name, folder, monkeypatch):
    start_ranks()
    reference_logprobs = loading.reference_logprobs

    def then_without_buffers(name, lm, dtype):
        expected = reference_logprobs(name, lm, dtype)
        for buffer in lm.buffers():
            buffer.zero_()
        return expected

    monkeypatch.setattr(loading, "reference_logprobs", then_without_buffers)
    assert "as trained here" in refusal(load_policy, folder(name))


@pytest.mark.parametrize("load", [load_policy, load_model])
def test_a_sampler_that_counts_positions_wrongly_is_refused(load, folder, monkeypatch):
    start_ranks()
    monkeypatch.setattr(cache, "signature", lambda _: SimpleNamespace(parameters={}))
    assert "in sampling" in refusal(load, folder("gpt2"))
