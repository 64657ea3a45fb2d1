"""infra/tables.py: local files, the sets on the hub, and a hub out of reach."""

import os
import shutil
import socket
from unittest import mock

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from infra import tables
from infra.errors import UserError
from infra.model_files import locate
from infra.problems import load_problems

GOOD = b'{"problem": "1+1?", "answer": "2"}\n'
PROBLEM = {"problem": "1+1?", "answer": "2"}


@pytest.mark.parametrize(
    "ending, content",
    [
        ("jsonl", b"\n" + GOOD + b"\n"),
        ("jsonl", b"\xef\xbb\xbf" + GOOD),  # a byte order mark, which some editors write
        ("jsonl", GOOD.strip().replace(b" ", b"\t") + b"\r\n"),
        ("json", GOOD),
        ("json", b"\n[" + GOOD + b"]"),
        ("csv", b'\xef\xbb\xbfid,problem,answer\r\n007,1+1?,"2"\r\n'),
    ],
)
def test_read_table_reads_files_as_editors_write_them(ending, content, tmp_path):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(content)
    assert load_problems(str(path)) == [PROBLEM]


def test_cells_of_a_csv_file_are_texts_and_gaps_are_empty(tmp_path):
    cells = '2024-01-02\n"1,200"\nNA\nTrue\n0.10\n\n"a\nb"\n""\n'
    (tmp_path / "a.csv").write_text("answer\n" + cells)
    records = tables.read_file(tmp_path / "a.csv", tables.Source(""))
    answers = [record["answer"] for record in records]
    assert answers == ["2024-01-02", "1,200", "NA", "True", "0.10", "a\nb", ""]


def test_a_parquet_file_is_read_again_though_its_time_is_the_same(tmp_path):
    """As with cp -p, rsync -t and tar; load_dataset would return its cached records."""
    path = tmp_path / "a.parquet"
    for answer in "23":
        pq.write_table(pa.Table.from_pylist([{"q": "1+1?", "a": answer}, {"q": "2+2?"}]), path)
        os.utime(path, (1, 1))
        assert load_problems(str(path), "q", "a") == [PROBLEM | {"answer": answer}]


REFUSED = {
    "missing.jsonl": (None, "No such file"),
    "empty.jsonl": (b"", "{path} is empty"),
    "bad.jsonl": (GOOD * 2 + b'{"problem": "1\n' + GOOD, "(line 3 is not JSON: Unterminated"),
    "list.jsonl": (GOOD + b"\n[1]\n", "a record is not like {{"),
    "list.json": (b"[" + GOOD + b", 1]", "a record is not like {{"),
    "bad.json": (b"[" + GOOD, "(Expecting ',' delimiter: line 2"),
    "more.csv": (b"problem,answer\n1,2\n1,2,3\n", "(record 2 has more cells than the header"),
    "twice.csv": (
        b"problem,answer,answer\n1,2,3\n",
        "(two columns have one name: problem, answer, answer",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_read_table_names_what_is_wrong_with_a_file(name, tmp_path):
    content, message = REFUSED[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        load_problems(str(path), flag="--eval-data")
    assert message.format(path=path) in str(refused.value)
    assert f"--eval-data {path}" in str(refused.value).replace("'", "")
    assert "\n" not in str(refused.value)


@pytest.fixture
def hub(monkeypatch):
    """hub(records) makes them every set on the hub, and returns the mock of load_dataset."""

    def start(records):
        load = mock.Mock(return_value=Dataset.from_list(records))
        monkeypatch.setattr(tables, "load_dataset", load)
        return load

    return start


@pytest.mark.parametrize(
    "name, columns, set_name, options",
    [
        ("deepmath", ("question", "final_answer"), "zwhe99/DeepMath-103K", {}),
        ("a/b::x[:9]@1", ("problem", "answer"), "a/b", {"split": "x[:9]", "revision": "1"}),
        ("gsm8k-test", ("question", "answer"), "openai/gsm8k", {"name": "main", "split": "test"}),
        ("math", ("problem", "answer"), "rasbt/math_full_minus_math500", {}),
    ],
)
def test_only_the_needed_columns_become_python_objects(name, columns, set_name, options, hub):
    load = hub([{columns[0]: "1+1?", columns[1]: 2, "solution": "long"}])
    with mock.patch.object(tables, "records_of", side_effect=tables.records_of) as read:
        assert load_problems(name) == [PROBLEM]
    load.assert_called_once_with(set_name, **{"split": "train"} | options)
    assert read.call_args.args[0].column_names == list(columns)


def test_gpqa_shuffles_its_answers_and_names_the_right_letter(hub):
    wrong = {f"Incorrect Answer {i}": f"wrong{i}\n" for i in (1, 2, 3)}
    load = hub([{"Question": f"q{i}\n", "Correct Answer": " right", **wrong} for i in range(8)])
    problems = load_problems("gpqa_diamond")
    load.assert_called_once_with("Idavidrein/gpqa", split="train", name="gpqa_diamond")
    assert len({each["answer"] for each in problems}) > 1
    for i, each in enumerate(problems):
        question, *options, last = each["problem"].split("\n")
        assert (question, last, each["choice"]) == (f"q{i}", "Answer with the letter.", True)
        assert [option[:4] for option in options] == ["(A) ", "(B) ", "(C) ", "(D) "]
        assert sorted(option[4:] for option in options) == ["right", "wrong1", "wrong2", "wrong3"]
        assert f"({each['answer']}) right" in options
    assert problems == load_problems("gpqa_diamond")


def test_mmlu_pro_is_a_fixed_sample_with_its_options_in_order(hub):
    same = {"options": list("uvwxyzabcd"), "answer": "J", "answer_index": 9}
    load = hub([{"question": f"q{i}", **same} for i in range(700)])
    problems = load_problems("mmlu_pro")
    load.assert_called_once_with("TIGER-Lab/MMLU-Pro", split="test")
    assert len({each["problem"] for each in problems}) == 600
    assert "\n(A) u\n(B) v\n" in problems[0]["problem"] and "\n(J) d\n" in problems[0]["problem"]
    assert all(each["answer"] == "J" and each["choice"] for each in problems)
    assert problems == load_problems("mmlu_pro")


def test_a_set_with_a_loading_script_is_one_line(hub):
    load = hub([PROBLEM])
    load.side_effect = RuntimeError("Dataset scripts are no longer supported, but found a.py")
    with pytest.raises(UserError, match="--data 'some/set' .*scripts are no longer.*: pass one of"):
        load_problems("some/set")


@pytest.fixture
def no_hub(monkeypatch):
    """The proxy refuses every connection, and nothing is waited for before another try."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # closed from here on
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    huggingface_hub.close_session()  # the next session reads the environment
    yield
    huggingface_hub.close_session()


def test_a_hub_out_of_reach_is_one_line(no_hub):
    with pytest.raises(UserError, match="'gsm8k', on the hub openai/gsm8k:main .*: pass one of"):
        load_problems("gsm8k")
    with pytest.raises(UserError, match="--model some/where: .* hf download .*ConnectError"):
        locate("some/where")


def test_a_cached_model_needs_no_hub(no_hub, base_copy, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--some--where"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text(40 * "a")
    shutil.copytree(base_copy, cached / "snapshots" / (40 * "a"))
    folder, config, _ = locate("some/where")
    assert folder == cached / "snapshots" / (40 * "a")
    assert config.model_type == "qwen3"
