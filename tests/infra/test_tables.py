"""infra/tables.py, infra/hub.py: user data is read, or refused with a one-line message."""

import csv
import json
import shutil
import socket
from decimal import Decimal
from unittest import mock

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from infra.tables import cell_text
from toy_runs import SMALL, refusal

import evaluate
import toy
import train
from infra.errors import UserError
from infra.problems import encode_prompts, load_problems
from verify import reward

GOOD = b'{"problem": "1+1?", "answer": "2"}\n'
PROBLEM = {"problem": "1+1?", "answer": "2"}


# ---- refused files -----------------------------------------------------------------------------

REFUSED = {
    "empty.jsonl": (b"", "{path} has no rows"),
    "empty.json": (b"", "{path} has no rows"),
    "empty.csv": (b"", "{path} has no rows"),
    "empty.parquet": (b"", "{path} is not a parquet file"),
    "blank.jsonl": (b"\n\n", "{path} has no rows"),
    "none.json": (b"[]", "{path} has no rows"),
    "header.csv": (b"problem,answer\n", "{path} has no rows"),
    "latin.jsonl": (GOOD + '{"problem": "é"}'.encode("latin-1"), "{path} is not UTF-8 (byte 48)"),
    "latin.csv": ("problem,answer\né,1\n".encode("latin-1"), "{path} is not UTF-8"),
    "bad.jsonl": (GOOD * 2 + b'{"problem": "1\n' + GOOD, "{path}, line 3, is not JSON"),
    "list.jsonl": (GOOD + b"\n[1]\n", "{path}, line 3, is not a dictionary"),
    "array.jsonl": (b"[" + GOOD + b"]", "{path}, line 1, is no"),
    "bad.json": (b'[{"problem": ', "{path} is not JSON"),
    "dict.json": (GOOD, "{path} is not an array"),
    "entry.json": (b"[" + GOOD + b", 7]", "{path}, entry 2, is not a dictionary"),
    "twice.csv": (
        b"problem,answer,answer\n1,2,3\n",
        "{path}, line 1, repeats the column answer: rename one",
    ),
    "wide.csv": (b"problem,answer\n1,2\n1,2,3\n", "{path}, line 3, has more cells"),
    "nul.jsonl": (GOOD + b"\0\0\0\n", "{path}, line 2, is not JSON"),
    "escaped_nul.jsonl": (
        GOOD + b'{"problem": "1\\u0000", "answer": "2"}\n',
        "{path}, row 2, column problem, holds a NUL character",
    ),
    "surrogate.jsonl": (
        GOOD + b'{"problem": "1", "answer": "\\ud800"}\n',
        "{path}, row 2, column answer, holds half of a surrogate pair",
    ),
    "deep.jsonl": (GOOD + b"[" * 100_000 + b"\n", "{path}, line 2, is not JSON"),
    "deep_cell.json": (
        b'[{"problem": "1", "answer": "2", "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
        "{path} is not JSON",
    ),
    "exponent.jsonl": (b'{"problem": "1", "answer": 1e' + b"9" * 30 + b"}", "line 1, is not JSON"),
    "deep.json": (b"[" * 100_000, "{path} is not JSON"),
    "nul.csv": (b"problem,answer\n1+1?,\0\n", "{path}, row 1, column answer, holds a NUL"),
    "bad.parquet": (b"no parquet", "{path} is not a parquet file"),
    "cell.jsonl": (
        GOOD + b'{"problem": {"text": "1"}, "answer": "2"}\n',
        "{path}, row 2, column problem, holds a dict: write a string or a number",
    ),
    "members.jsonl": (
        b'{"problem": "1", "answer": [1, 2]}\n',
        "{path}, row 1, column answer, holds a list",
    ),
    "comma.json": (
        b'[{"problem": "1", "answer": ["(1, 2)", "x=1, y=2"]}]',
        "{path}, row 1, column answer, holds the member x=1, y=2: a comma separates members",
    ),
    "thousands.json": (
        b'[{"problem": "1", "answer": ["1,000", "2"]}]',
        "{path}, row 1, column answer, holds the member 1,000: a comma separates members",
    ),
    "bool.json": (b'[{"problem": "1", "answer": true}]', "row 1, column answer, holds a bool"),
    "columns.csv": (b"question,answer\n1,2\n", "no column problem (it has question, answer)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unreadable_file_gets_a_one_line_error(name, tmp_path, capsys):
    content, message = REFUSED[name]
    path = tmp_path / name
    path.write_bytes(content)
    flags = [*SMALL, "--data", path, "--output-dir", tmp_path / "run"]
    assert message.format(path=path) in refusal(train.main, flags, capsys)
    assert not (tmp_path / "run").exists()


def test_a_missing_file_is_refused(tmp_path, capsys):
    said = refusal(train.main, [*SMALL, "--data", tmp_path / "a.json"], capsys)
    assert f"there is no file {tmp_path / 'a.json'}" in said


# ---- accepted files ----------------------------------------------------------------------------

LONG = "123456789012345678901234567890"


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.jsonl", b"\n" + GOOD + b"\n"),
        ("a.jsonl", b"\xef\xbb\xbf" + GOOD),  # a byte order mark, which some editors write
        ("a.jsonl", GOOD.strip().replace(b" ", b"\t") + b"\r\n"),
        ("a.json", b"[\n" + GOOD + b"]\n"),
        ("a.csv", b'answer,problem\r\n2,"1+1?"\r\n\r\n'),
    ],
)
def test_load_problems_reads_files_as_editors_write_them(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert load_problems(str(tmp_path / name)) == [PROBLEM]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_thirty_digit_integers_keep_every_digit(name, tmp_path):
    path = tmp_path / name
    row = {"problem": "1", "answer": int(LONG)}
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row | {"answer": Decimal(LONG)}]), path)
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([row.keys(), row.values()])
    else:
        path.write_text(json.dumps([row] if path.suffix == ".json" else row))
    assert load_problems(str(path)) == [{"problem": "1", "answer": LONG}]


@pytest.mark.parametrize(
    "number, text",
    [
        ("0.12345678901234567890123", "0.12345678901234567890123"),
        ("3.14159265358979323846", "3.14159265358979323846"),
        ("2.0", "2"),
        ("2.5", "2.5"),
        ("1e-7", "0.0000001"),
        ("1.5e3", "1500"),
        ("NaN", ""),
    ],
)
def test_json_decimals_keep_every_digit(number, text, tmp_path):
    line = f'{{"problem": "1", "answer": {number}}}\n{{"problem": "2", "answer": 3}}\n'
    (tmp_path / "a.jsonl").write_text(line)
    answers = [each["answer"] for each in load_problems(str(tmp_path / "a.jsonl"))]
    assert answers == ([text, "3"] if text else ["3"])


def test_decimals_in_program_tests_are_floats(tmp_path):
    tests = [{"function": "half", "args": [1.5, [2, 0.25]], "expected": 0.75}]
    (tmp_path / "a.json").write_text(json.dumps([{"problem": "1", "tests": tests}]))
    (problem,) = load_problems(str(tmp_path / "a.json"))
    assert json.dumps(problem["tests"]) == json.dumps(tests)


def test_cell_text_adds_no_digits_to_floats():
    assert [cell_text(value) for value in (2.0, 1e30, float("nan"))] == ["2", "1e+30", ""]


def test_a_csv_cell_may_have_several_lines(tmp_path):
    text = "one\ntwo\x0b\u2028three"
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([("problem", "answer"), (text, "2")])
    assert load_problems(str(tmp_path / "a.csv")) == [{"problem": text, "answer": "2"}]


@pytest.mark.parametrize("name", ["a.json", "a.parquet"])
def test_a_list_of_strings_is_a_list_answer(name, tmp_path):
    rows = [{"problem": "1", "answer": ["1", "\\frac{1}{2}"]}, {"problem": "2", "answer": ["7"]}]
    if name == "a.json":
        (tmp_path / name).write_text(json.dumps(rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    two, one = load_problems(str(tmp_path / name))
    assert reward("\\boxed{1, 0.5}", two["answer"]) == 1
    assert reward("\\boxed{1}", two["answer"]) == 0
    assert one["answer"] == "7"


def test_commas_inside_brackets_do_not_split_a_list_answer(tmp_path):
    rows = [
        {"problem": "2", "answer": ["(1,200)", "3"]},
        {"problem": "3", "answer": ["x=1, y=2"]},  # a single string is not a list
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    pair, one = load_problems(str(tmp_path / "a.json"))
    assert reward("\\boxed{(1, 200), 3}", pair["answer"]) == 1
    assert one["answer"] == "x=1, y=2"


CHAT = [{"role": "system", "content": "1"}, {"role": "user", "content": "2+3=?"}]


@pytest.mark.parametrize("name", ["a.json", "a.parquet"])
def test_a_chat_goes_through_the_chat_template(name, tmp_path):
    """The chat is unchanged: no instruction is added, and --prompt-template is not applied."""
    rows = [{"problem": CHAT, "answer": "5"}]
    if name == "a.json":
        (tmp_path / name).write_text(json.dumps(rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    problems = load_problems(str(tmp_path / name))
    assert problems == [{"problem": "1\n2+3=?", "answer": "5", "chat": CHAT}]

    tokenizer = toy.build_tokenizer()
    with pytest.raises(UserError, match="no chat template"):
        encode_prompts(problems, tokenizer, 200)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}8{% endif %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}7{% endif %}"
    )
    for template in ("", "9{problem}"):
        _, prompts = encode_prompts(problems, tokenizer, 200, template)
        assert tokenizer.batch_decode(prompts) == ["182+3=?7"]


# ---- the model and the hub -------------------------------------------------------------------


@pytest.fixture
def no_network(monkeypatch):
    """A proxy that refuses connections."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    huggingface_hub.close_session()  # the next session reads the environment
    yield
    huggingface_hub.close_session()


def test_without_a_network_there_are_no_retries(no_network, tmp_path, capsys):
    """Loading a model and loading data each fail with one line, without waiting to retry."""
    with mock.patch("time.sleep", side_effect=AssertionError("the download was retried")):
        flags = ["--output-dir", tmp_path / "run", "--model"]
        assert "--model no/such: no model" in refusal(train.main, [*flags, "no/such"], capsys)
        flags = [*SMALL, "--output-dir", tmp_path / "run", "--data"]
        said = refusal(train.main, [*flags, "no/such"], capsys)
    assert "cannot load no/such, the value or default of --data (" in said

    (tmp_path / "a.jsonl").write_bytes(GOOD)
    flags = ["--model", toy.base_folder(5, 0.2, 1), "--output-dir", tmp_path / "run", "--data"]
    said = refusal(train.main, [*flags, tmp_path / "a.jsonl"], capsys)
    assert "cannot load aime25, the value or default of --eval-data (" in said


def test_an_unresponsive_proxy_gets_a_one_line_error(no_network, monkeypatch, tmp_path, capsys):
    """The proxy accepts connections but sends nothing. Without a timeout, a download would hang."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{silent.getsockname()[1]}")
        huggingface_hub.close_session()
        flags = ["--output-dir", tmp_path / "run", "--model", "no/such"]
        assert "--model no/such: no model" in refusal(train.main, flags, capsys)


@pytest.fixture
def no_data(monkeypatch):
    """Makes every download of data fail."""

    def fetched(*_, **__):
        raise AssertionError("data was fetched")

    monkeypatch.setattr("infra.run.load_problems", fetched)
    monkeypatch.setattr("infra.responses.load_problems", fetched)


def wrong_model(kind: str, folder):
    """An unusable copy of the toy's base model. For `none` the folder does not exist."""
    if kind == "none":
        return folder
    shutil.copytree(toy.base_folder(5, 0.2, 1), folder)
    tokenizer = toy.build_tokenizer()
    if kind == "only .bin":
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    if kind == "many words":
        tokenizer.add_tokens([f"word{i}" for i in range(11)])
        tokenizer.save_pretrained(folder)
    if kind == "no end":
        (folder / "generation_config.json").unlink(missing_ok=True)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
        tokenizer.eos_token = None
        tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "kind, message",
    [
        ("none", "no model"),
        ("only .bin", "no .safetensors in"),
        ("many words", "tokenizer has 41 ids"),
        ("no end", "the id of an end token"),
    ],
)
def test_a_wrong_model_is_refused_before_data_is_fetched(kind, message, tmp_path, no_data, capsys):
    folder = wrong_model(kind, tmp_path / "model")
    for program in (train.main, evaluate.main):
        said = refusal(program, ["--model", folder, "--output-dir", tmp_path / "out"], capsys)
        assert f"--model {folder}: " in said
        assert message in said


def test_a_trailing_slash_on_the_model_changes_nothing():
    plain = train.parse_config(["--model", "some/model"])
    assert train.parse_config(["--model", "some/model/"]) == plain
