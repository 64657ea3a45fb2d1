"""Tests infra/data_sets.py: local files, the sets on the hub, and a hub out of reach."""

import json
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

from infra import data_sets
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
    records, _ = data_sets.read_file(tmp_path / "a.csv", data_sets.Source(""))
    answers = [record["answer"] for record in records]
    assert answers == ["2024-01-02", "1,200", "NA", "True", "0.10", "a\nb", ""]


def test_a_parquet_file_is_read_again_though_its_time_is_the_same(tmp_path):
    """cp -p, rsync -t and tar keep a file's time; load_dataset would return its cached records."""
    path = tmp_path / "a.parquet"
    for answer in "23":
        pq.write_table(pa.Table.from_pylist([{"q": "1+1?", "a": answer}, {"q": "2+2?"}]), path)
        os.utime(path, (1, 1))
        assert load_problems(str(path), "q", "a") == [PROBLEM | {"answer": answer}]


REFUSED = {
    "missing.jsonl": (None, "No such file"),
    "empty.jsonl": (b"", "{path} is empty"),
    "bad.jsonl": (GOOD * 2 + b'{"problem": "1\n' + GOOD, "(Invalid control character at: line 3"),
    "list.jsonl": (GOOD + b"\n[1]\n", "a record is not like {{"),
    "list.json": (b"[" + GOOD + b", 1]", "a record is not like {{"),
    "bad.json": (b"[" + GOOD, "(Expecting ',' delimiter: line 2"),
    "more.csv": (b"problem,answer\n1,2\n1,2,3\n", "(record 2 has more cells than the header"),
    "twice.csv": (
        b"problem,answer,answer\n1,2,3\n",
        "(two columns have the same name: problem, answer, answer",
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
    """hub(records) makes them the content of every set on the hub. Returns load_dataset's mock."""

    def start(records):
        load = mock.Mock(return_value=Dataset.from_list(records))
        monkeypatch.setattr(data_sets, "load_dataset", load)
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
    with mock.patch.object(data_sets, "records_of", side_effect=data_sets.records_of) as read:
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
    """A proxy refuses every connection, and retries do not wait."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # the port is closed after this block
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


# ---- columns, images, splits and golds that a user would not miss --------------------------------


def write(path, *records):
    """Write records as .jsonl or .parquet. Returns the path as a string."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(records)), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("column", ["context", "passage", "input", "system"])
def test_columns_that_the_model_does_not_see_are_named(ending, column, tmp_path, capsys):
    path = write(tmp_path / f"a.{ending}", {column: "c", "question": "1+1?", "answer": "2"})
    assert load_problems(path, "question") == [PROBLEM]
    said = f"{path}: question, answer are used; the model does not see {column}\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("column", ["image", "images", "image_1", "decoded_image", "videos"])
def test_records_with_a_picture_are_counted_and_dropped(ending, column, tmp_path, capsys):
    seen = {"problem": "2+2?", "answer": "4", column: ["a.png"]}
    path = write(tmp_path / f"a.{ending}", PROBLEM | {column: []}, seen)
    assert load_problems(path) == [PROBLEM]
    said = "  1 with a picture, which the model would not see; the first is record 2, '2+2?', '4'\n"
    assert said in capsys.readouterr().out
    assert load_problems(write(tmp_path / f"b.{ending}", PROBLEM | {column: None})) == [PROBLEM]
    with pytest.raises(UserError, match="holds no problem"):
        load_problems(write(tmp_path / f"c.{ending}", seen))


NONE = ["proof", "notfound", "N/A", "See solution.", "unknown", "-", r"\boxed{\text{not found}}"]


def test_golds_that_stand_for_none_are_counted_and_dropped(tmp_path, capsys):
    records = [{"problem": f"p{i}", "answer": gold} for i, gold in enumerate([*NONE, "no", "2"])]
    path = write(tmp_path / "a.jsonl", *records)
    assert [each["answer"] for each in load_problems(path)] == ["no", "2"]
    assert (
        f"{path}: 7 of 9 records are dropped\n  7 without a text or an answer; the"
        in capsys.readouterr().out
    )


def test_a_folder_keeps_the_digits_of_an_answer_or_refuses_it(tmp_path):
    big = 2**53 + 1
    gap = [{"problem": "a", "answer": big}, {"problem": "b", "answer": None}]
    write(tmp_path / "train.jsonl", *gap, {"problem": "c", "answer": "word"})
    answers = [each["answer"] for each in load_problems(str(tmp_path))]
    assert answers == ["9007199254740993", "word"]
    write(tmp_path / "train.jsonl", *gap, {"problem": "c", "answer": 0.5})  # makes all floats
    with pytest.raises(UserError, match="record 1, column answer, holds 9.*, which has lost digit"):
        load_problems(str(tmp_path))


@pytest.mark.parametrize(
    "splits, flag, taken",
    [
        (("train", "test"), "--data", "train"),
        (("train", "test"), "--benchmarks", "test"),
        (("train", "validation"), "--eval-data", "validation"),
        (("train",), "--benchmarks", "train"),
    ],
)
def test_an_evaluation_takes_the_test_split_and_names_it(splits, flag, taken, tmp_path, capsys):
    for split in splits:
        write(tmp_path / f"{split}.jsonl", {"problem": split, "answer": "2"})
    assert load_problems(str(tmp_path), flag=flag) == [{"problem": taken, "answer": "2"}]
    said = f"{tmp_path}: evaluated on the split {taken}, of {', '.join(splits)}\n"
    assert (said in capsys.readouterr().out) == (flag != "--data")


def test_a_whole_record_needs_no_answer_and_keeps_its_columns(tmp_path):
    records = [{"problem": f"p{i}", "numbers": [3, 7], "target": 10} for i in range(2)]
    for ending in ("jsonl", "parquet"):
        problems = load_problems(write(tmp_path / f"a.{ending}", *records), whole=True)
        assert [each["record"] for each in problems] == records
    rationale = {"problem": "p", "answer": "3 + 4 = 7.\n#### 7", "id": 1}
    (problem,) = load_problems(write(tmp_path / "b.jsonl", rationale), whole=True)
    assert problem == {"problem": "p", "answer": "7", "record": rationale}


@pytest.mark.parametrize("name", [":::", "@", ":a", "@b"])
def test_a_name_without_a_set_is_one_line(name):
    with pytest.raises(UserError, match="an empty name"):
        load_problems(name)
