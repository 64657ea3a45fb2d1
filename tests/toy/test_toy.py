"""toy/: the task, its tokenizer, the decisive tokens, and the base models."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import toy
import toy.base
import toy.build
import toy.code_base
import toy.code_tokenizer
from toy.task import is_right
from toy.tokenizer import LARGE_VOCABULARY, MANY_CONNECTIVES
from verify import reward

FOLDERS = sorted(path for path in toy.base.BASES.iterdir() if path.is_dir())


# Problems


def test_chain_works_left_to_right_mod_10():
    assert toy.chain("7*6+1-4=?") == [2, 3, 9]
    for p in toy.problems(50, seed=3, k=4):
        value = int(p["problem"][0])
        for operation, digit in re.findall(r"([-+*])(\d)", p["problem"]):
            if operation == "+":
                value += int(digit)
            elif operation == "-":
                value -= int(digit)
            else:
                value *= int(digit)
        # Reducing mod 10 at the end, not after each step, gives the same digit.
        assert p["answer"] == str(value % 10)


def test_problems_are_the_same_on_every_machine():
    assert toy.problems(3) == [
        {"problem": "6*3-8-5-3*4=?", "answer": "8"},
        {"problem": "3+3+3*1*7-6=?", "answer": "7"},
        {"problem": "2-0*3-6*2+0=?", "answer": "0"},
    ]


# Demonstrations


def test_demonstration_is_the_same_on_every_machine():
    rng = np.random.default_rng(0)
    response = toy.demonstration("7*6+1-4=?", rng, noise=0.5, filler=1)
    assert response == "Also 7*6=2\nHere 2+1=6\nNext 6-4=2\nanswer \\boxed{2}"


def test_demonstrations_without_noise_are_right():
    rng = np.random.default_rng(0)
    for p in toy.problems(200, seed=2):
        assert reward(toy.demonstration(p["problem"], rng), p["answer"]) == 1.0


def test_demonstrations_have_the_given_error_rate():
    rng = np.random.default_rng(0)
    wrong = []
    for p in toy.problems(600, seed=2):
        response = toy.demonstration(p["problem"], rng, noise=0.3)
        for step, result in re.findall(r"(\d[-+*]\d)=(\d)\n", response):
            wrong.append(toy.chain(f"{step}=?") != [int(result)])
    assert len(wrong) == 600 * 5
    # A uniform digit is right by chance one time in ten.
    assert abs(np.mean(wrong) - 0.3 * 0.9) < 0.03


@pytest.mark.parametrize("regime, mistaken, by", [("learn", "*", 3), ("learn-minus", "-", 9)])
def test_learn_demonstrations_have_one_systematic_mistake_and_random_slips(regime, mistaken, by):
    rng = np.random.default_rng(0)
    excess = {"*": [], "+": [], "-": []}
    for p in toy.problems(600, seed=2):
        response = toy.demonstration(p["problem"], rng, noise=0.3, regime=regime)
        for step, operation, result in re.findall(r"(\d([-+*])\d)=(\d)\n", response):
            excess[operation].append((int(result) - toy.chain(f"{step}=?")[0]) % 10)
    # The mistaken operation's result is right or off by `by`. The wrong result is more likely.
    of_mistaken = excess.pop(mistaken)
    assert set(of_mistaken) == {0, by}
    assert abs(np.mean(np.array(of_mistaken) == by) - 0.55) < 0.05
    for operation in excess:
        assert set(excess[operation]) == set(range(10))
        assert abs(np.mean(np.array(excess[operation]) != 0) - 0.3 * 0.9) < 0.05


def test_connectives_follow_zipf():
    rng = np.random.default_rng(0)
    words = []
    for p in toy.problems(400, seed=2):
        response = toy.demonstration(p["problem"], rng, filler=4, zipf=True)
        words += re.findall(r"[A-Z][a-z]+ ", response)
    assert len(words) == 400 * 5 * 4
    shares = np.array([words.count(word) for word in MANY_CONNECTIVES]) / len(words)
    assert shares.sum() == 1.0
    # The first has probability 1 / 6.1 (the sum of 1 / r over 248 ranks), the second half of that.
    assert abs(shares[0] - 1 / 6.1) < 0.02
    assert abs(shares[1] - 0.5 / 6.1) < 0.02
    assert abs(shares[100:].sum() - 0.9 / 6.1) < 0.02


def test_demonstration_continues_from_its_own_results():
    rng = np.random.default_rng(1)
    for p in toy.problems(50, seed=4):
        response = toy.demonstration(p["problem"], rng, noise=0.5, filler=2)
        operands = re.findall(r"(\d)[-+*]\d=", response)
        results = re.findall(r"=(\d)\n", response)
        box = re.search(r"\\boxed\{(\d)\}$", response)[1]
        assert operands == [p["problem"][0], *results[:-1]]
        assert box == results[-1]


# The tokenizer


@pytest.mark.parametrize("filler", [0, 1, 4])
def test_tokenizer_round_trip(filler):
    tokenizer = toy.build_tokenizer()
    rng = np.random.default_rng(0)
    for p in toy.problems(20):
        text = p["problem"] + toy.demonstration(p["problem"], rng, 0.5, filler)
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text
        assert toy.TOKEN_ID["<unk>"] not in ids
        # A step is its fillers and `a+b=c\n`; the end is `answer `, the box, its digit and `}`.
        assert len(ids) == len(p["problem"]) + 5 * (filler + 6) + 4


def test_large_vocabulary_keeps_the_ids_from_the_small_vocabulary():
    tokenizer = toy.build_tokenizer(LARGE_VOCABULARY)
    rng = np.random.default_rng(0)
    for p in toy.problems(50):
        text = p["problem"] + toy.demonstration(p["problem"], rng, 0.5, 4, zipf=True)
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text
        assert len(ids) == len(p["problem"]) + 5 * (4 + 6) + 4
        assert [LARGE_VOCABULARY[i] for i in ids] == tokenizer.convert_ids_to_tokens(ids)
    assert LARGE_VOCABULARY[: len(toy.VOCABULARY)] == toy.VOCABULARY
    assert len(set(LARGE_VOCABULARY)) == len(LARGE_VOCABULARY) == 270


# Decisive tokens


def decided(problem, response):
    """The (position, token) pairs for decisive tokens in a response given as text."""
    ids = toy.build_tokenizer()(response).input_ids
    mark = toy.decisive(problem, torch.tensor(ids))
    assert mark.shape == (len(ids),)
    assert mark.dtype == torch.bool
    return [(i, toy.VOCABULARY[ids[i]]) for i in mark.nonzero().flatten().tolist()]


def test_decisive_marks_every_result_of_a_right_response():
    response = "So 7*6=2\nSo 2+1=3\nSo 3-4=9\nanswer \\boxed{9}<eos>"
    assert decided("7*6+1-4=?", response) == [(5, "2"), (12, "3"), (19, "9")]


def test_decisive_marks_only_the_first_wrong_result():
    response = "So 7*6=2\nSo 2+1=5\nSo 5-4=1\nanswer \\boxed{1}<eos>"
    assert decided("7*6+1-4=?", response) == [(12, "5")]


def test_decisive_ignores_an_error_that_was_undone():
    # The first result is wrong, but `*0` undoes the error; then 0+9 is wrong.
    assert decided("7+6*0+9=?", "7+6=4\n4*0=0\n0+9=8\nanswer \\boxed{8}<eos>") == [(16, "8")]
    # Cut off before this error: no earlier error matters.
    assert decided("7+6*0+9=?", "7+6=4\n4*0=0\n0+") == []
    # The product is wrong, and no later step undoes the error.
    assert decided("7+6*0+9=?", "7+6=4\n4*0=3\n3+9=2\nanswer \\boxed{2}<eos>") == [(10, "3")]


def test_decisive_marks_the_box_if_only_the_box_is_wrong():
    response = "7*6=2\n2+1=3\n3-4=9\nanswer \\boxed{8}<eos>"
    assert decided("7*6+1-4=?", response) == [(20, "8")]


@pytest.mark.parametrize(
    "response, right",
    [
        ("answer \\boxed{9}<eos>", True),
        ("answer \\boxed{9", True),
        ("answer \\boxed{8}\\n9", False),
        ("answer \\boxed{95}", False),
        ("answer \\boxed{}", False),
        ("answer \\boxed{8} 3-4=9 \\boxed{9}", True),
        ("So 7*6=2\n", False),
        ("", False),
    ],
)
def test_is_right_reads_the_last_box(response, right):
    assert is_right("7*6+1-4=?", response) == right


@pytest.mark.parametrize("k, noise, filler", [(5, 0.2, 1), (12, 0.06, 0), (3, 0.5, 4)])
def test_is_right_agrees_with_verify_on_demonstrations(k, noise, filler):
    rng = np.random.default_rng(5)
    rights = []
    for p in toy.problems(300, seed=6, k=k):
        response = toy.demonstration(p["problem"], rng, noise, filler)
        rights.append(is_right(p["problem"], response))
        assert rights[-1] == (reward(response, p["answer"]) == 1.0)
    assert 0.1 < np.mean(rights) < 0.9  # both right and wrong responses occurred


# The committed base models


def test_committed_bases_match_the_build_list():
    names = [base.name for base in toy.build.COMMITTED]
    names.append(toy.code_base.NAME)
    assert [folder.name for folder in FOLDERS] == sorted(names)


@pytest.mark.parametrize("base", toy.build.COMMITTED, ids=lambda base: base.name)
def test_committed_base_loads_in_float32_without_training(base, tmp_path, monkeypatch):
    monkeypatch.setattr(toy.base, "train_base", None)
    folder = toy.base_folder(**vars(base), cache=tmp_path)
    model, tokenizer = toy.base_model(**vars(base), cache=tmp_path)
    assert folder == toy.base.BASES / base.name
    assert list(tmp_path.iterdir()) == []
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    assert 1e5 <= model.num_parameters() <= 4e5
    assert len(tokenizer) == len(base.vocabulary) == model.config.vocab_size
    assert tokenizer.decode(tokenizer("Now 1+2=3\n").input_ids) == "Now 1+2=3\n"
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == toy.TOKEN_ID["<eos>"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_committed_base_is_float16_on_disk_and_names_no_machine(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        dtypes = {weights.get_tensor(name).dtype for name in weights.keys()}  # noqa: SIM118
    assert dtypes == {torch.float16}
    for path in folder.glob("*.json"):
        text = path.read_text()
        assert "_name_or_path" not in json.loads(text)
        assert not re.search(r"\"[^\"]*/(home|tmp|work|Users|root)/", text)


def probabilities(model, tokenizer, base, count=128):
    """The model's probability of each token in responses without errors, teacher-forced.
    Returns [count, R] float32, the probability of each token of `count` demonstrations, and three
    bool [count, R]: which tokens are products, other results, and connectives.
    """
    rng = np.random.default_rng(7)
    problems = toy.problems(count, seed=77, k=base.k)
    answers = []
    for p in problems:
        answer = toy.demonstration(p["problem"], rng, 0.0, base.filler, zipf=base.zipf)
        answers.append(answer + "<eos>")
    prompts = torch.tensor(tokenizer([p["problem"] for p in problems]).input_ids)  # [count, P]
    responses = torch.tensor(tokenizer(answers).input_ids)  # [count, R]
    with torch.no_grad():
        logits = model(input_ids=torch.cat([prompts, responses], dim=1)).logits
    predicted = logits[:, prompts.shape[1] - 1 : -1].softmax(dim=-1)  # [count, R, V]
    expected = predicted.gather(-1, responses[..., None])[..., 0]  # [count, R]
    before = torch.cat([prompts[:, -1:], responses[:, :-1]], dim=1)
    results = before == toy.TOKEN_ID["="]
    # `a*b=c`: the operation is three tokens before the result
    operation = toy.TOKEN_ID["-" if base.regime == "learn-minus" else "*"]
    mistaken = results & (responses.roll(3, dims=1) == operation)
    words = MANY_CONNECTIVES if base.zipf else toy.CONNECTIVES
    connectives = torch.isin(responses, torch.tensor(tokenizer.convert_tokens_to_ids(words)))
    return expected, mistaken, results & ~mistaken, connectives


@pytest.mark.parametrize("base", toy.build.COMMITTED, ids=lambda base: base.name)
def test_committed_base_follows_the_format_but_errs_in_results(base):
    model, tokenizer = toy.base_model(**vars(base))
    expected, mistaken, others, connectives = probabilities(model, tokenizer, base)
    if base.regime == "sharpen":
        others = others | mistaken
    frame = ~(mistaken | others | connectives)
    # Other tokens are right under greedy decoding: their probability is above one half.
    assert (expected[frame | others] > 0.5).float().mean() > 0.998
    assert expected[frame].mean() > 0.995
    # Results are wrong as often as in the demonstrations.
    assert abs(expected[others].mean() - (1 - 0.9 * base.noise)) < 0.03
    if base.regime != "sharpen":
        assert abs(expected[mistaken].mean() - 0.45) < 0.05
        assert (expected[mistaken] > 0.5).float().mean() < 0.3
    # Responses without an error are likely enough for RL.
    whole = expected.masked_fill(connectives, 1.0).prod(dim=1)
    least = 0.25 if base.regime == "sharpen" else 0.05  # (1 - 0.55 / 3)^12 is 0.09
    assert least < whole.mean() < 0.60


# Building a base model


def train_briefly(base):
    return toy.train_base(base, steps=3, batch=8)


def weights_of(folder):
    return (folder / "model.safetensors").read_bytes()


def test_base_folder_builds_other_bases_once_and_reproducibly(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(toy.base, "train_base", train_briefly)
    state = torch.get_rng_state()
    first = toy.base_folder(k=2, cache=tmp_path / "first")
    again = toy.base_folder(k=2, cache=tmp_path / "again")
    other = toy.base_folder(k=2, seed=1, cache=tmp_path / "other")
    assert capsys.readouterr().out.count("building the toy's base model") == 3
    assert torch.equal(torch.get_rng_state(), state)  # a run's random state does not change
    assert weights_of(first) == weights_of(again)
    assert weights_of(first) != weights_of(other)
    # The second call reads the folder, and no temporary folder remains.
    monkeypatch.setattr(toy.base, "train_base", None)
    model, tokenizer = toy.base_model(k=2, cache=tmp_path / "first")
    assert capsys.readouterr().out == ""
    assert list((tmp_path / "first").iterdir()) == [first]
    assert model.dtype == torch.float32
    assert len(tokenizer) == len(toy.VOCABULARY)
    with safe_open(first / "model.safetensors", framework="pt") as weights:
        assert weights.get_tensor("lm_head.weight").dtype == torch.float16


def test_save_base_keeps_the_folder_of_another_process(tmp_path):
    model = toy.build_model()
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "made").touch()
    toy.base.save_base(model, folder, toy.build_tokenizer())
    assert [path.name for path in folder.iterdir()] == ["made"]
    assert list(tmp_path.iterdir()) == [folder]


def test_build_replaces_the_named_base(tmp_path, monkeypatch):
    monkeypatch.setattr(toy.build, "train_base", train_briefly)
    threads = torch.get_num_threads()
    name = "k5-noise0.2-filler1-seed0"
    (tmp_path / name).mkdir()
    (tmp_path / name / "stale").touch()
    toy.build.main([name], tmp_path)
    torch.set_num_threads(threads)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "model.safetensors").exists()
    assert not (tmp_path / name / "stale").exists()


def test_supervised_batch_pads_on_the_right_and_learns_responses_only():
    tokenizer = toy.build_tokenizer()
    ids, labels = toy.base.supervised_batch(tokenizer, ["1+2=?", "1+2*3=?"], ["So ", "1+2=3"])
    plain = tokenizer(["1+2=?So <eos>", "1+2*3=?1+2=3<eos>"]).input_ids
    padding = [toy.TOKEN_ID["<pad>"]] * (len(plain[1]) - len(plain[0]))
    assert ids.tolist() == [plain[0] + padding, plain[1]]
    assert labels.tolist() == [
        [-100] * 5 + plain[0][5:] + [-100] * len(padding),
        [-100] * 7 + plain[1][7:],
    ]


# Layers


def test_toy_imports_no_other_part_of_the_repository():
    root = Path(toy.__file__).parent.parent
    others = {path.stem for path in root.glob("*.py")} | {"infra", "benchmarks", "tests"}
    for path in sorted((root / "toy").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module]
            else:
                continue
            assert not others & {module.split(".")[0] for module in modules}, path
