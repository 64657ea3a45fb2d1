"""Programming problems: known data sets, the user's own data sets, and complete runs."""

import base64
import json
import pickle
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toy_runs import read_lines, refusal, train_small

import evaluate
import grading
import toy
import train
from infra import hub as hub_module
from infra import ranks
from infra.errors import UserError
from infra.hub import LIVECODEBENCH, SOURCES
from infra.problems import encode_prompts, load_problems
from programs import ProgramsError, verify_code
from programs import problems as code_problems
from programs.problems import CODE_INSTRUCTION, KEYS, unpacked
from programs.sandbox.client import SandboxBroken
from programs.verify_code import RUNNERS, run_tests

# ---- the known data sets -------------------------------------------------------------------------


def packed(tests: list[dict]) -> str:
    """Tests in LiveCodeBench's format for private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def eurus_row(ability: str, truth: str, number: int) -> dict:
    return {
        "data_source": "taco",
        "prompt": [
            {"role": "system", "content": "Think."},
            {"role": "user", "content": f"Problem {number}."},
        ],
        "ability": ability,
        "reward_model": {"ground_truth": truth, "style": "rule"},
        "extra_info": {"index": number, "split": "train"},
    }


STREAMS = json.dumps({"inputs": ["3 4\n", "5 6\n"], "outputs": ["7\n", "11\n"]})
FUNCTION = json.dumps({"fn_name": "add", "inputs": [[3, 4], [1, 1]], "outputs": [[7], 2]})
TEXTS = json.dumps({"fn_name": "add", "inputs": ["3\n4", "1\n1\n"], "outputs": ["7", "[2]"]})
ADD_STREAMS = "a, b = map(int, input().split())\nprint(a + b)"
ADD = "def add(a, b): return a + b"
ADD_METHOD = "class Solution:\n    def add(self, a, b): return a + b"

ROWS = {
    "eurus2_rl_code": [
        eurus_row("math", "7", 0),
        eurus_row("code", STREAMS, 1),
        eurus_row("code", FUNCTION, 2),
        eurus_row("code", TEXTS, 3),
        eurus_row("code", "no JSON", 4),
    ],
    "humaneval_plus": [
        {
            "task_id": "HumanEval/0",
            "prompt": 'def add(a: int, b: int) -> int:\n    """The sum."""\n',
            "canonical_solution": "    return a + b\n",
            "entry_point": "add",
            "test": "import numpy as np\n\ndef check(candidate):\n    inputs = [[3, 4], [5, 6]]\n"
            "    results = [7, 11]\n    for i, (inp, exp) in enumerate(zip(inputs, results)):\n"
            "        assert np.allclose(candidate(*inp), exp)\n",
        }
    ],
    "mbpp_plus": [
        {
            "task_id": 2,
            "code": ADD,
            "prompt": "Write a function that adds.",
            "source_file": "x.ipynb",
            "test_imports": ["import math"],
            "test_list": ["assert add(3, 4) == 7", "assert add(5, 6) == 11"],
            "test": "inputs = [[3, 4], [5, 6]]\nresults = [7, 11]\n"
            "for inp, exp in zip(inputs, results):\n    assert math.isclose(add(*inp), exp)\n",
        }
    ],
    "livecodebench": [
        {
            "question_title": "Sum",
            "question_content": "Print the sum.",
            "platform": "atcoder",
            "question_id": "a",
            "contest_id": "c",
            "contest_date": "2024-10-01T00:00:00",
            "starter_code": "",
            "difficulty": "easy",
            "public_test_cases": '[{"input": "3 4", "output": "7", "testtype": "stdin"}]',
            "private_test_cases": packed([{"input": "5 6", "output": "11", "testtype": "stdin"}]),
            "metadata": "{}",
        },
        {
            "question_title": "Sum",
            "question_content": "Return the sum.",
            "platform": "leetcode",
            "question_id": "b",
            "contest_id": "c",
            "contest_date": "2024-10-01T00:00:00",
            "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
            "difficulty": "easy",
            "public_test_cases": '[{"input": "3\\n4", "output": "7", "testtype": "functional"}]',
            "private_test_cases": '[{"input": "5\\n6", "output": "11", "testtype": "functional"}]',
            "metadata": '{"func_name": "add"}',
        },
    ],
}

RIGHT = {
    "eurus2_rl_code": [ADD_STREAMS, ADD, ADD],
    "humaneval_plus": [ADD],
    "mbpp_plus": [ADD],
    "livecodebench": [ADD_STREAMS, ADD_METHOD],
}
TESTS = {
    "eurus2_rl_code": [2, 2, 2],
    "humaneval_plus": [1],
    "mbpp_plus": [1],
    "livecodebench": [2, 2],
}


RULES_OF = {
    "eurus2_rl_code": None,
    "humaneval_plus": "evalplus",
    "mbpp_plus": "evalplus",
    "livecodebench": "livecodebench",
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Make load_dataset read a local parquet file. Returns a list of the calls to it."""
    asked = []
    load_dataset = hub_module.load_dataset

    def play(name, **options):
        asked.append((name, options))
        table = next(t for n, t in ROWS.items() if SOURCES[n].hub == name)
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(table), path)
        return load_dataset("parquet", data_files=str(path), split="train")

    monkeypatch.setattr(hub_module, "load_dataset", play)
    return asked


@pytest.mark.parametrize("name", ROWS)
def test_known_sets_become_prompts_and_tests(name, hub, capsys):
    problems = load_problems(name)
    assert hub == [(SOURCES[name].hub, {"revision": None, **SOURCES[name].options})]
    assert [len(each["tests"]) for each in problems] == TESTS[name]
    for each, program in zip(problems, RIGHT[name], strict=True):
        assert each["problem"] and "answer" not in each
        assert {test.get("rules") for test in each["tests"]} == {RULES_OF[name]}
        assert run_tests(program, each["tests"]).stopped == ""
        wrong = program.replace("a + b", "a - b")
        assert run_tests(wrong, each["tests"]).passed == 0
    if name == "eurus2_rl_code":
        assert [each["problem"] for each in problems] == [
            "Think.\nProblem 1.",
            "Think.\nProblem 2.",
            "Think.\nProblem 3.",
        ]
        assert problems[0]["chat"][1] == {"role": "user", "content": "Problem 1."}
        assert "1 of 4 problems dropped" in capsys.readouterr().out  # not the maths problem


def test_prompts_describe_the_required_program(hub):
    humaneval = load_problems("humaneval_plus")[0]["problem"]
    assert "```python\ndef add(a: int, b: int) -> int:" in humaneval
    mbpp = load_problems("mbpp_plus")[0]["problem"]
    assert mbpp.endswith("assert add(3, 4) == 7") and "11" not in mbpp
    streams, method = (each["problem"] for each in load_problems("livecodebench"))
    assert "standard input" in streams and "class Solution:" in method

    tokenizer = toy.build_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    rendered = []
    encode = tokenizer.apply_chat_template

    def seen(chat, **options):
        rendered.append(chat[-1]["content"])
        return encode([{"role": "user", "content": "1"}], **options)

    tokenizer.apply_chat_template = seen
    encode_prompts(load_problems("mbpp_plus"), tokenizer, 100)
    assert rendered[0] == f"{mbpp}\n{CODE_INSTRUCTION}"


def test_code_data_sets_match_the_paper():
    hubs = {name: SOURCES[name].hub for name in ROWS}
    assert hubs == {
        "eurus2_rl_code": "PRIME-RL/Eurus-2-RL-Data",
        "humaneval_plus": "evalplus/humanevalplus",
        "mbpp_plus": "evalplus/mbppplus",
        "livecodebench": "json",
    }
    assert LIVECODEBENCH[0].endswith("livecodebench/code_generation_lite/test.jsonl")
    assert len(LIVECODEBENCH) == 6


class Evil:
    def __reduce__(self):
        return print, ("called",)


def in_base_64(content: bytes) -> str:
    return base64.b64encode(content).decode()


WHOLE = packed([{"input": "5 6", "output": "11", "testtype": "stdin"}])
PICKLED = zlib.decompress(base64.b64decode(WHOLE))
DAMAGED = {
    "a call": in_base_64(zlib.compress(pickle.dumps(Evil()))),
    "a call in an old protocol": in_base_64(zlib.compress(pickle.dumps(Evil(), 0))),
    "truncated": in_base_64(zlib.compress(PICKLED[:-9])),
    "truncated within an opcode": in_base_64(zlib.compress(PICKLED[:9])),
    "no opcodes": in_base_64(zlib.compress(b"\xff" * 99)),
    "nothing": in_base_64(zlib.compress(b"")),
    "two strings": in_base_64(zlib.compress(PICKLED[:-1] + PICKLED[2:])),
    "a number": in_base_64(zlib.compress(pickle.dumps(7))),
    "a memo with 2 ** 31 entries": in_base_64(zlib.compress(b"\x80\x02r\xff\xff\xff\x7f.")),
    "text of 2 ** 63 bytes": in_base_64(zlib.compress(b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.")),
    "text that is not UTF-8": in_base_64(zlib.compress(b"\x80\x04\x8c\x02\xff\xff.")),
    "truncated compressed data": in_base_64(base64.b64decode(WHOLE)[:-9]),
    "not compressed": in_base_64(PICKLED),
    "not base64": "\u0663",
    "a truncated base64 block": WHOLE[:-3],
    "a string instead of tests": packed("tests"),
    "a number instead of a test": packed([7]),
    "tests without an output": packed([{"input": "5 6", "testtype": "stdin"}]),
    "numbers instead of strings": packed([{"input": 5, "output": 11, "testtype": "stdin"}]),
    "a number instead of text": "7",
    "a deeply nested list": "[" * 10**5,
    "None": None,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_unreadable_private_tests_are_dropped(name):
    """load_problems drops rows without tests and prints how many it dropped."""
    row = ROWS["livecodebench"][0] | {"private_test_cases": DAMAGED[name]}
    assert SOURCES["livecodebench"].read(row, 0)["tests"] == []


def test_private_tests_can_use_any_pickle_protocol():
    tests = [{"input": "5 6\n", "output": "é", "testtype": "stdin"}]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        content = zlib.compress(pickle.dumps(json.dumps(tests, ensure_ascii=False), protocol))
        assert unpacked(in_base_64(content)) == tests


def test_a_decompression_bomb_is_not_unpacked(monkeypatch):
    """Unpacking stops at the size limit, before the content can exhaust memory."""
    read = []
    monkeypatch.setattr(code_problems, "UNPACKED_BYTES", 10**6)
    monkeypatch.setattr(code_problems, "pickled_text", read.append)
    bomb = in_base_64(zlib.compress(bytes(10**8)))
    with pytest.raises(ValueError, match="too large"):
        unpacked(bomb)
    assert read == []


# ---- local files in the layouts of known data sets -----------------------------------------------

APPS = [
    {"problem_id": 0, "question": "Print the sum.", "input_output": STREAMS, "starter_code": ""},
    {
        "problem_id": 1,
        "question": "Add.",
        "input_output": FUNCTION,
        "starter_code": "def add(a, b):",
    },
    {"problem_id": 2, "question": "Nothing.", "input_output": "", "starter_code": ""},
]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_local_copies_of_known_data_sets_are_recognised(name, suffix, hub, tmp_path):
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS[name]), path)
    else:
        write(path, ROWS[name])
    assert load_problems(str(path)) == load_problems(name)


def test_local_files_in_the_apps_layout(tmp_path):
    streams, function = load_problems(write(tmp_path / "apps.jsonl", APPS))
    assert "standard input" in streams["problem"] and "def add(a, b):" in function["problem"]
    for each, program in ((streams, ADD_STREAMS), (function, ADD)):
        assert run_tests(program, each["tests"]).stopped == ""
        assert run_tests(program.replace("a + b", "a - b"), each["tests"]).passed == 0


def test_a_row_that_differs_from_the_others_gets_a_one_line_error(tmp_path):
    rows = [ROWS["mbpp_plus"][0], ROWS["mbpp_plus"][0] | {"test_list": []}]
    with pytest.raises(UserError, match="row 2, differs from the other rows .IndexError"):
        load_problems(write(tmp_path / "a.jsonl", rows))
    lacking = [ROWS["humaneval_plus"][0], {"prompt": "p", "test": "t"}]
    with pytest.raises(UserError, match="row 2, .*KeyError: 'entry_point'"):
        load_problems(write(tmp_path / "b.jsonl", lacking))


def test_named_columns_take_precedence_over_a_layout(tmp_path):
    rows = [{"question": "1 + 1", "answer": "2", "input_output": STREAMS}]
    path = write(tmp_path / "a.jsonl", rows)
    assert load_problems(path, "question") == [{"problem": "1 + 1", "answer": "2"}]
    assert load_problems(path)[0]["tests"]


# ---- the user's data sets ------------------------------------------------------------------------

GOOD = [
    {"input": "1", "output": "2"},
    {"function": "f", "args": [], "expected": None},
    {"script": "assert f()", "entry_point": "f"},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_local_file_with_problem_and_tests(tmp_path):
    rows = [
        {"problem": "p", "tests": GOOD},
        {"problem": "q", "tests": json.dumps(GOOD[:1])},
        {"problem": "r", "answer": "7"},
        {"problem": "s", "tests": []},
    ]
    problems = load_problems(write(tmp_path / "a.jsonl", rows))
    assert problems == [
        {"problem": "p", "tests": GOOD},
        {"problem": "q", "tests": GOOD[:1]},
        {"problem": "r", "answer": "7"},
    ]


NAN = float("nan")
BAD = {
    "not a list": ("x = 1", "is not valid JSON"),
    "a number": (7, "is of type int"),
    "not a dictionary": ([7], "test 1, is not a dictionary"),
    "no kind": ([GOOD[0], {"question": "?"}], "test 2, has none of the keys output, function"),
    "no input": ([{"output": "2"}], "lacks input"),
    "an unknown key": ([{"input": "1", "output": "2", "score": 3}], "has the key score"),
    "a number for a string": ([{"input": 1, "output": "2"}], "needs a string for input"),
    "no arguments": ([{"function": "f", "args": 3, "expected": 3}], "needs a list for args"),
    "surrogate output": ([{"input": "1", "output": "\ud800"}], "lone surrogate in its output"),
    "surrogate input": ([{"input": "\ud800", "output": ""}], "surrogate in its input"),
    "NaN": ([{"function": "f", "args": [], "expected": [{"a": NAN}]}], "expects NaN"),
    "NaN in or": ([{"function": "f", "args": [], "expected": 1, "or": [NAN]}], "expects NaN"),
    "not Python": ([{"script": "assert f("}], "not Python"),
    "unknown rules": ([{"input": "1", "output": "2", "rules": "x"}], "unknown rules: use"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_tests_get_a_one_line_error(name, tmp_path):
    tests, said = BAD[name]
    path = write(tmp_path / "a.jsonl", [{"problem": "p", "tests": tests}])
    with pytest.raises(ProgramsError, match=f"row 1, column tests.*{said}"):
        load_problems(path)


def test_tests_that_no_program_can_pass_are_dropped_from_known_data_sets():
    """The whole row loses its tests, as if they were unreadable."""
    halves = json.dumps({"inputs": ["1"], "outputs": ["\ud800"]})
    nan = json.dumps({"fn_name": "f", "inputs": [[1]], "outputs": [[NAN]]})
    for truth in (halves, nan):
        row = eurus_row("code", truth, 0)
        assert SOURCES["eurus2_rl_code"].read(row, 0)["tests"] == []
    public = json.dumps([{"input": "1", "output": "\udfff", "testtype": "stdin"}])
    row = ROWS["livecodebench"][0] | {"public_test_cases": public}
    assert SOURCES["livecodebench"].read(row, 0)["tests"] == []


def test_every_kind_of_test_has_a_runner():
    assert KEYS.keys() == RUNNERS.keys()


# ---- ranks ---------------------------------------------------------------------------------------


def as_rank_one_of_three(monkeypatch, shares):
    """Make this process act as rank 1 of 3. shares: each rank's results; None for this rank."""

    def gather(mine):
        return [mine if share is None else share for share in shares]

    monkeypatch.setattr(ranks, "rank_and_world", lambda: (1, 3))
    monkeypatch.setattr(ranks, "from_all_ranks", gather)


def test_each_rank_grades_its_share_and_gets_all_grades(monkeypatch):
    as_rank_one_of_three(monkeypatch, [[0, 30], None, [20]])
    asked = []

    def work(items):
        asked.extend(items)
        return [10 * item for item in items]

    assert ranks.shared_by_ranks([0, 1, 2, 3], work) == [0, 10, 20, 30]
    assert asked == [1]


def test_a_sandbox_failure_on_one_rank_stops_all_ranks(monkeypatch):
    as_rank_one_of_three(monkeypatch, [[0, 30], None, UserError("broke")])
    with pytest.raises(UserError, match="broke"):
        ranks.shared_by_ranks([0, 1, 2, 3], list)

    def broken(responses, tests):
        raise SandboxBroken("here")

    def graded(items):
        return verify_code.rewards(["x"] * len(items), [[]] * len(items))

    monkeypatch.setattr(verify_code, "rewards", broken)
    as_rank_one_of_three(monkeypatch, [[0, 30], None, [20]])
    with pytest.raises(SandboxBroken, match="here"):
        ranks.shared_by_ranks([0, 1, 2, 3], graded)


# ---- complete runs -------------------------------------------------------------------------------


ANY_WALLS = ("--code-sandbox", "landlock")  # available on every machine that can run programs


@pytest.fixture
def programs_for_the_toy(tmp_path):
    """Problems in the toy vocabulary. The toy base model never solves them."""
    rows = []
    for each in toy.problems(8, seed=1):
        rows.append({"problem": each["problem"], "tests": [{"input": "", "output": "7"}]})
    return write(tmp_path / "programs.jsonl", rows)


def test_train_and_evaluate_with_programs(programs_for_the_toy, tmp_path, capsys, monkeypatch):
    """Before grading, the responses are replaced: half of them with a right program."""
    grades = grading.grades

    def half_right(responses, problems, truncated):
        texts = [f"```\nprint({7 + i % 2})\n```" for i in range(len(responses))]
        return grades(texts, problems, truncated)

    monkeypatch.setattr(train, "grades", half_right)
    flags = ("--data", programs_for_the_toy, "--eval-data", programs_for_the_toy, *ANY_WALLS)
    metrics = train_small(tmp_path / "run", *flags, steps=1)
    assert metrics[1]["reward"] == 0.5
    assert metrics[0]["eval_accuracy"] == 0.0
    assert "programs   run" in capsys.readouterr().out
    samples = read_lines(tmp_path / "run" / "samples.jsonl")
    assert samples and all("tests" not in sample for sample in samples)

    monkeypatch.setattr(evaluate, "grades", half_right)
    command = ["--model", tmp_path / "run" / "model", "--benchmarks", programs_for_the_toy]
    command += ["--samples", "2", "--max-new-tokens", "8", "--output-dir", tmp_path / "scores"]
    command += ANY_WALLS
    evaluate.main([str(word) for word in command])
    assert "| 8 | 50.00% | 100.00% |" in capsys.readouterr().out


def test_training_does_not_start_without_the_required_protection(
    programs_for_the_toy, tmp_path, capsys, monkeypatch
):
    server = verify_code.client.shared().servers[0]
    monkeypatch.setattr(server, "walls", "landlock")
    monkeypatch.setattr(server, "missing", "namespaces: forbidden")
    command = ["--data", programs_for_the_toy, "--eval-data", ""]
    said = refusal(train.main, [*command, "--output-dir", tmp_path / "run"], capsys)
    assert "strict is not available here (namespaces: forbidden): allow user namespaces" in said
    assert not (tmp_path / "run").exists()
