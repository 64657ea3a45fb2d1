"""toy/code_*.py: the programming task, its tokenizer, the decisive tokens, the base model."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_runs import read_lines, refusal

import toy
import train
from infra.problems import load_problems
from programs.verify_code import extract_program, rewards
from toy.code_base import NOISE
from toy.code_task import (
    FUNCTIONS,
    Chain,
    decisive,
    demonstration,
    describe,
    draw_any,
    expression,
    inputs,
    is_right,
    is_sound,
    problems,
    read,
    results,
)
from toy.code_tokenizer import CONSTANTS, NAMES, TOKEN_ID, VOCABULARY, build_tokenizer
from toy.tokenizer import CONNECTIVES

PROBLEM = "f(a, b, c): take a, add b, times 3, at most c\nf(2, 5, 9) = 9\nf(0, 1, 7) = 3\n"
RIGHT = "So Now \n```python\ndef f(a, b, c):\n    return min((a + b) * 3, c)\n```"

NEXT_BLOCK = "\n```python\ndef f(a, b, c):\n    return a\n```"

# Recorded outputs, which the generators must reproduce.
FIRST = "f(a, b): take b, times b, plus b, add a\nf(0, 4) = 20\nf(2, 7) = 58\n"
SECOND = "f(a, b): take b, divide by 3, times a, modulo 8\nf(1, 6) = 2\nf(0, 9) = 0\n"
FIRST_TESTS = [
    {"function": "f", "args": [8, 2], "expected": 14},
    {"function": "f", "args": [1, 2], "expected": 7},
]
DEMONSTRATION = "Here Next \n```python\ndef f(a, b, c):\n    return min((a + a) + 3, c)\n```"


def response(body):
    """A response to PROBLEM whose function returns `body`."""
    return RIGHT.replace("min((a + b) * 3, c)", body)


def chains(count, seed=0):
    """Random functions, sound or not."""
    rng = np.random.default_rng(seed)
    return [draw_any(rng) for _ in range(count)]


# ---- functions and problems --------------------------------------------------------------------


def test_results_match_the_python_expression():
    """Python evaluates the text on every input."""
    for chain in chains(300):
        names = NAMES[: chain.arguments]
        function = eval(f"lambda {', '.join(names)}: {''.join(expression(chain))}")
        assert results(chain) == [function(*values) for values in inputs(chain.arguments)]


def test_read_inverts_describe():
    rng = np.random.default_rng(1)
    for chain in chains(300):
        assert read(describe(chain, rng)) == chain


def test_problems_are_the_same_on_every_machine():
    first, second = problems(2)
    assert first["problem"] == FIRST
    assert second["problem"] == SECOND
    assert first["tests"][:2] == FIRST_TESTS
    assert problems(20, seed=1) != problems(20, seed=2)


def test_problems_contain_examples_and_tests_of_their_function():
    for each in problems(60, seed=4):
        chain = read(each["problem"])
        assert [test["args"] for test in each["tests"]] == inputs(chain.arguments)
        assert [test["expected"] for test in each["tests"]] == results(chain)

        names = NAMES[: chain.arguments]
        function = eval(f"lambda {', '.join(names)}: {''.join(expression(chain))}")
        _, *examples = each["problem"].splitlines()
        assert len(examples) == 2
        for example in examples:
            call, value = example.split(" = ")
            assert eval(call, {"f": function}) == eval(value)


def test_problems_use_every_operation():
    drawn = [read(each["problem"]) for each in problems(300, seed=5)]
    operations = {operation for chain in drawn for operation, _ in chain.steps}
    assert operations == set(FUNCTIONS)
    assert {chain.arguments for chain in drawn} == {2, 3}
    assert all(is_sound(chain) for chain in drawn)


@pytest.mark.parametrize(
    "steps",
    [
        (("+", "a"), ("*", "2"), ("-", "3")),  # b does not occur
        (("+", "b"), ("%", "5"), ("min", "9")),  # the last step has no effect
        (("%", "5"), ("max", "b"), (">=", "b")),  # always True
    ],
)
def test_is_sound_refuses_unused_arguments_and_steps_without_effect(steps):
    assert not is_sound(Chain(2, "a", steps))


def test_tests_detect_nearly_every_single_slip():
    """The tests miss few of the wrong constants that would change a result."""
    differing = 0
    missed = 0
    for each in problems(12, seed=6):
        chain = read(each["problem"])
        everywhere = list(itertools.product(range(10), repeat=chain.arguments))
        for i, (operation, _) in enumerate(chain.steps):
            for constant in CONSTANTS:
                steps = list(chain.steps)
                steps[i] = (operation, constant)
                other = replace(chain, steps=tuple(steps))
                truth = [toy.code_task.result(chain, values) for values in everywhere]
                given = [toy.code_task.result(other, values) for values in everywhere]
                differing += given != truth
                missed += given != truth and results(other) == results(chain)
    assert differing > 200
    assert missed < 0.05 * differing


# ---- demonstrations and the tokenizer ----------------------------------------------------------


def test_demonstration_is_the_same_on_every_machine():
    rng = np.random.default_rng(0)
    assert demonstration(PROBLEM, rng, noise=0.5) == DEMONSTRATION


def test_demonstrations_without_noise_are_right():
    rng = np.random.default_rng(0)
    for each in problems(100, seed=2):
        text = demonstration(each["problem"], rng)
        assert is_right(each["problem"], text)
        assert "".join(expression(read(each["problem"]))) in text


def test_demonstrations_slip_within_a_kind_and_keep_the_frame():
    rng = np.random.default_rng(0)
    tokenizer = build_tokenizer()
    kinds = [["+", "-", "*", "//", "%"], ["<", "<=", ">", ">=", "==", "!="]]
    kinds = [{TOKEN_ID[f" {name} "] for name in kind} for kind in kinds]
    kinds += [{TOKEN_ID["min("], TOKEN_ID["max("]}, {TOKEN_ID[name] for name in NAMES}]
    kinds += [{TOKEN_ID[constant] for constant in CONSTANTS}]

    slips = 0
    choices = 0
    for each in problems(300, seed=3):
        clean = tokenizer(demonstration(each["problem"], rng, filler=0)).input_ids
        noisy = tokenizer(demonstration(each["problem"], rng, noise=0.3, filler=0)).input_ids
        for token, other in zip(clean, noisy, strict=True):
            choices += token in set().union(*kinds)
            slips += token != other
            assert token == other or any({token, other} <= kind for kind in kinds)
    # A random token is the right one with probability 1/2 (min, max) to 1/9 (constants).
    assert 0.3 / 2 < slips / choices < 0.3 * 8 / 9


def test_learn_demonstrations_confuse_min_and_max():
    rng = np.random.default_rng(0)

    swapped = []
    for each in problems(400, seed=3):
        text = demonstration(each["problem"], rng, noise=0.3, regime="learn")
        bounds = [name for name, _ in read(each["problem"]).steps if name in ("min", "max")]
        written = re.findall("min|max", text)[::-1]  # the last step comes first
        swapped += [wrote != bound for wrote, bound in zip(written, bounds, strict=True)]

    assert abs(np.mean(swapped) - 0.7) < 0.08


def test_learn_demonstrations_have_no_slips_without_noise():
    rng = np.random.default_rng(0)
    for each in problems(100, seed=3):
        text = demonstration(each["problem"], rng, filler=0, regime="learn")
        right = demonstration(each["problem"], rng, filler=0)
        assert re.sub("min|max", "", text) == re.sub("min|max", "", right)


def test_demonstration_refuses_an_unknown_regime():
    with pytest.raises(ValueError, match="choose from learn, sharpen"):
        demonstration(PROBLEM, np.random.default_rng(0), regime="teach")


@pytest.mark.parametrize("filler", [0, 2, 5])
def test_tokenizer_round_trip(filler):
    tokenizer = build_tokenizer()
    rng = np.random.default_rng(0)
    for each in problems(200, seed=7):
        text = each["problem"] + demonstration(each["problem"], rng, 0.5, filler)
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text
        assert TOKEN_ID["<unk>"] not in ids


def test_vocabulary_has_no_duplicates():
    assert len(TOKEN_ID) == len(VOCABULARY)
    assert TOKEN_ID["<pad>"] == toy.TOKEN_ID["<pad>"]
    assert TOKEN_ID["<eos>"] == toy.TOKEN_ID["<eos>"]


# ---- the reward --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, right",
    [
        ("min((a + b) * 3, c)", True),
        ("min(c, 3 * (b + a))", True),
        ("min((a + b) * 3, a)", False),
        ("max((a + b) * 3, c)", False),
        ("(a + b) // 0", False),
        ("min((a + b) * d, c)", False),
        ("min((a + b) * 3, c", False),
        ("min((a + b) * 3)", False),
        ("a", False),
    ],
)
def test_is_right_agrees_with_the_sandbox(body, right):
    text = response(body)
    tests = toy.code_task.tests(read(PROBLEM))
    assert is_right(PROBLEM, text) == right
    assert rewards([text], [tests]) == [float(right)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "So Now ",
        RIGHT.removesuffix("\n```"),
        RIGHT.replace("f(a, b, c)", "f(a, b)"),
        RIGHT + NEXT_BLOCK,
        RIGHT + RIGHT,  # text follows the closing fence, so the fence closes nothing
        RIGHT + "So ",
    ],
)
def test_is_right_needs_the_function_in_the_last_block(text):
    tests = toy.code_task.tests(read(PROBLEM))
    assert not is_right(PROBLEM, text)
    assert rewards([text], [tests]) == [0.0]


def test_is_right_reads_the_last_block():
    tests = toy.code_task.tests(read(PROBLEM))
    text = response("a") + NEXT_BLOCK.replace("return a", "return min((a + b) * 3, c)")
    assert is_right(PROBLEM, text)
    assert rewards([text], [tests]) == [1.0]


def test_is_right_accepts_1_for_true_like_the_sandbox():
    problem = "f(a, b): take a, add b, times 3, is it above 5\n"
    text = "\n```python\ndef f(a, b):\n    return ((a + b) * 3) > 5\n```"
    as_number = text.replace("> 5", "> 5) * 1").replace("return (", "return ((")
    tests = toy.code_task.tests(read(problem))

    assert extract_program(as_number) is not None
    assert [is_right(problem, each) for each in (text, as_number)] == [True, True]
    assert rewards([text, as_number], [tests, tests]) == [1.0, 1.0]


def test_is_right_agrees_with_the_sandbox_on_demonstrations():
    rng = np.random.default_rng(5)
    asked = problems(60, seed=6)
    texts = [demonstration(each["problem"], rng, NOISE, regime="learn") for each in asked]

    given = [is_right(each["problem"], text) for each, text in zip(asked, texts, strict=True)]
    assert rewards(texts, [each["tests"] for each in asked]) == [float(right) for right in given]
    assert 0.2 < np.mean(given) < 0.8  # both right and wrong responses occurred


# ---- decisive tokens ---------------------------------------------------------------------------


def decided(text, problem=PROBLEM):
    """The decisive tokens in a response given as text."""
    ids = build_tokenizer()(text).input_ids
    mark = decisive(problem, torch.tensor(ids))
    assert mark.shape == (len(ids),)
    assert mark.dtype == torch.bool
    return [VOCABULARY[token] for token, marked in zip(ids, mark.tolist(), strict=True) if marked]


def test_decisive_marks_operators_names_and_constants_in_a_right_response():
    assert decided(RIGHT + "<eos>") == ["min(", "a", " + ", "b", " * ", "3", "c"]
    assert decided(response("min(c, 3 * (b + a))")) == ["min(", "c", "3", " * ", "b", " + ", "a"]


def test_decisive_marks_the_body_of_the_last_function_only():
    text = response("a") + NEXT_BLOCK.replace("return a", "return min((a + b) * 3, c)")
    assert decided(text) == ["min(", "a", " + ", "b", " * ", "3", "c"]


@pytest.mark.parametrize(
    "text, first",
    [
        (response("max((a + b) * 3, a)"), ["max("]),
        (response("min((a + b) * 4, a)"), ["4"]),
        (response("min((a // b) * 3, c)"), [" // "]),
        (response("min((a + b * 3, c)"), [" * "]),  # a bracket was expected
        (RIGHT.replace("f(a, b, c)", "f(a, b)"), ["):\n    return "]),
        (RIGHT + NEXT_BLOCK, ["\n```python\n"]),  # the end was expected
    ],
)
def test_decisive_marks_the_first_wrong_token_only(text, first):
    assert decided(text + "<eos>") == first


def test_decisive_marks_the_position_of_the_wrong_token():
    text = response("min((a + a) * 3, a)")
    ids = build_tokenizer()(text).input_ids
    mark = decisive(PROBLEM, torch.tensor(ids))
    position = int(mark.nonzero())
    assert VOCABULARY[ids[position - 1]] == " + "


def test_decisive_is_empty_without_an_error():
    assert decided("So Now Then ") == []
    assert decided(RIGHT.removesuffix(", c)\n```")) == []


# ---- --model toy-code --------------------------------------------------------------------------


def test_train_grades_programs_by_their_tests(tmp_path):
    """One step of the real loop. Each reward matches its program, and the model is updated."""
    size = ["--steps", "1", "--prompts", "8", "--group-size", "4", "--mini-batch", "4"]
    command = ["--model", "toy-code", "--eval-data", "", "--output-dir", str(tmp_path), *size]
    train.main(command)

    (row,) = read_lines(tmp_path / "metrics.jsonl")
    assert row["truncated"] < 0.5
    assert row["grad_norm"] > 0
    samples = read_lines(tmp_path / "samples.jsonl")
    assert len(samples) == 4 * 2  # of four groups
    for sample in samples:
        assert sample["reward"] == float(is_right(sample["problem"], sample["response"]))


def test_training_improves_the_base(tmp_path):
    """Fewer and larger steps than the default. Measured once: 0.35 before and 0.64 after."""
    size = ["--steps", "25", "--eval-every", "25", "--eval-samples", "1", "--save-every", "100"]
    command = ["--model", "toy-code", "--lr", "3e-4", "--output-dir", str(tmp_path), *size]
    train.main(command)
    rows = read_lines(tmp_path / "metrics.jsonl")
    assert rows[0]["eval_accuracy"] < 0.45
    # On the same 256 problems; the standard error of the difference is about 0.04.
    assert rows[-1]["eval_accuracy"] > rows[0]["eval_accuracy"] + 0.15


def test_training_and_held_out_problems_are_drawn_separately():
    held_out = load_problems("toy-code-held-out", seed=3)
    assert held_out == load_problems("toy-code-held-out", seed=4)
    assert len(held_out) == 256
    trained = load_problems("toy-code", seed=3)
    assert trained != load_problems("toy-code", seed=4)

    # There are few possible programs, so some occur in both sets.
    known = {read(each["problem"]) for each in trained}
    both = sum(read(each["problem"]) in known for each in held_out)
    assert both < 0.05 * len(held_out)


def test_prompts_and_responses_fit_the_defaults():
    cfg = train.parse_config(["--model", "toy-code"])
    tokenizer = build_tokenizer()
    rng = np.random.default_rng(0)
    for each in problems(500, seed=8):
        text = demonstration(each["problem"], rng, NOISE) + "<eos>"
        assert len(tokenizer(each["problem"]).input_ids) <= cfg.max_prompt_tokens
        assert len(tokenizer(text).input_ids) <= cfg.max_new_tokens


@pytest.mark.parametrize(
    "flag",
    [
        "--toy-regime sharpen",
        "--toy-k 6",
        "--toy-noise 0.3",
        "--toy-filler 2",
        "--toy-zipf",
    ],
)
def test_flags_for_the_other_toy_are_refused(flag, capsys):
    error = refusal(train.main, ["--model", "toy-code", *flag.split()], capsys)
    assert f"{flag.split()[0]} does nothing" in error


# ---- the committed base model ------------------------------------------------------------------


@pytest.fixture(scope="module")
def code_base():
    return toy.code_base_model()


def test_code_base_has_the_expected_size_and_vocabulary(code_base):
    model, tokenizer = code_base
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    assert 1e5 <= model.num_parameters() <= 5e5
    assert len(tokenizer) == len(VOCABULARY) == model.config.vocab_size
    assert tokenizer(PROBLEM).input_ids == build_tokenizer()(PROBLEM).input_ids
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == TOKEN_ID["<eos>"]


def probabilities(model, tokenizer, each):
    """[T] the probability of each token in the right response to a problem, and the tokens [T]."""
    text = demonstration(each["problem"], np.random.default_rng(7)) + "<eos>"
    prompt = tokenizer(each["problem"]).input_ids
    tokens = tokenizer(text).input_ids
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0]  # [P + T, V]
    expected = logits[len(prompt) - 1 : -1].softmax(dim=-1)  # [T, V]
    return expected[range(len(tokens)), tokens], tokens


def test_code_base_follows_the_format_and_errs_like_its_demonstrations(code_base):
    connectives = [TOKEN_ID[word] for word in CONNECTIVES]
    choices = [TOKEN_ID[token] for token in toy.code_task.CHOICES]
    bounds = torch.tensor([TOKEN_ID["min("], TOKEN_ID["max("]])
    frame, bounded, chosen, whole = [], [], [], []
    for each in problems(128, seed=77):
        p, tokens = probabilities(*code_base, each)
        tokens = torch.tensor(tokens)
        body = torch.arange(len(tokens)) > int((tokens == TOKEN_ID["):\n    return "]).nonzero())
        is_choice = torch.isin(tokens, torch.tensor(choices)) & body
        is_bound = torch.isin(tokens, bounds)
        is_connective = torch.isin(tokens, torch.tensor(connectives))
        bounded.append(p[is_bound])
        chosen.append(p[is_choice & ~is_bound])
        frame.append(p[~is_choice & ~is_connective])
        whole.append(p[~is_connective].prod())

    # The right choice of min or max is less likely; every other right token has more than half.
    assert abs(torch.cat(bounded).mean() - 0.3) < 0.05
    assert (torch.cat(bounded) > 0.5).float().mean() < 0.3
    assert (torch.cat(chosen) > 0.5).float().mean() > 0.99
    assert torch.cat(frame).mean() > 0.99
    # A slip draws a wrong token with probability 1/2 (two names) to 8/9 (nine constants).
    assert NOISE / 2 < 1 - torch.cat(chosen).mean() < NOISE
    assert 0.25 < torch.stack(whole).mean() < 0.55
