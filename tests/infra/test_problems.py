"""infra/problems.py: local files, hub data set columns, dropped rows, prompts, order."""

import csv
import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from infra.tables import cell_text

import toy
from infra import hub as hub_module
from infra.errors import UserError
from infra.hub import SOURCES
from infra.problems import (
    INSTRUCTION,
    draw_indices,
    encode_prompts,
    load_problems,
)

PROBLEMS = [{"problem": "1+1?", "answer": "2"}, {"problem": "2+2?", "answer": "4"}]


def write(path, table):
    """Write `table`, a list of dicts, in the format of the path's extension."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(line) + "\n" for line in table))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(table), path)
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, table[0])
            writer.writeheader()
            writer.writerows(table)
    return str(path)


# ---- data sets --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_load_problems_reads_local_files(tmp_path, suffix):
    assert load_problems(write(tmp_path / f"a{suffix}", PROBLEMS)) == PROBLEMS

    renamed = [
        {"q": each["problem"], "a": int(each["answer"]), "solution": "long"} for each in PROBLEMS
    ]
    assert load_problems(write(tmp_path / f"b{suffix}", renamed), "q", "a") == PROBLEMS


def test_load_problems_drops_and_counts_empty_and_repeated_problems(tmp_path, capsys):
    table = [
        *PROBLEMS,
        {"problem": "", "answer": "3"},
        {"problem": "3+3?", "answer": None},
        {"problem": "1+1?", "answer": "3"},  # the first of repeated problems is kept
        *PROBLEMS,
    ]
    assert load_problems(write(tmp_path / "a.jsonl", table)) == PROBLEMS
    assert capsys.readouterr().out == (
        f"{tmp_path / 'a.jsonl'}: 5 of 7 problems dropped: 2 empty, or without an answer or tests, "
        "1 repeated with a different answer (the first is kept), 2 repeated\n"
    )


def test_the_first_rank_prints_what_load_problems_drops(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert load_problems(write(tmp_path / "a.jsonl", [*PROBLEMS, *PROBLEMS])) == PROBLEMS
    assert capsys.readouterr().out == ""


def test_load_problems_prefers_a_duplicate_with_an_answer(tmp_path):
    table = [{"problem": "1+1?", "answer": None}, *PROBLEMS]
    assert load_problems(write(tmp_path / "a.jsonl", table)) == PROBLEMS


def test_load_problems_reports_what_is_wrong(tmp_path):
    with pytest.raises(UserError, match="no column question .it has problem, answer"):
        load_problems(write(tmp_path / "a.jsonl", PROBLEMS), "question")
    with pytest.raises(UserError, match="holds no problem"):
        load_problems(write(tmp_path / "b.jsonl", [{"problem": "", "answer": ""}]))
    with pytest.raises(UserError, match="there is no file .*missing.jsonl"):
        load_problems(str(tmp_path / "missing.jsonl"))

    (tmp_path / "broken.parquet").write_text("no parquet")
    with pytest.raises(UserError, match="broken.parquet is not a parquet file"):
        load_problems(str(tmp_path / "broken.parquet"))


FREE_ANSWERS = sorted(name for name, source in SOURCES.items() if source.read is None)


@pytest.mark.parametrize("name", FREE_ANSWERS)
def test_known_sources_request_their_columns_from_the_hub(name, tmp_path, monkeypatch):
    """A local file with the source's columns, plus an unneeded one, replaces the hub."""
    source = SOURCES[name]
    table = []
    for each in PROBLEMS:
        table.append(
            {
                source.problem_column: each["problem"],
                source.answer_column: int(each["answer"]),
                "solution": "x",
            }
        )
    path = write(tmp_path / "a.parquet", table)
    asked = []
    load_dataset = hub_module.load_dataset

    def hub(name, **options):
        asked.append((name, dict(options)))
        return load_dataset("parquet", data_files=path, **options)

    monkeypatch.setattr(hub_module, "load_dataset", hub)
    monkeypatch.setattr(hub_module, "asked_once", lambda *_, **__: None)
    assert load_problems(name) == PROBLEMS
    assert asked == [(source.hub, {"revision": None, **source.options})]


def test_sources_match_the_paper():
    """This covers the training set, the seven benchmarks and the benchmarks in other domains."""
    assert {name: source.hub for name, source in SOURCES.items()} == {
        "deepmath": "zwhe99/DeepMath-103K",
        "aime24": "HuggingFaceH4/aime_2024",
        "aime25": "MathArena/aime_2025",
        "aime26": "MathArena/aime_2026",
        "hmmt25_feb": "MathArena/hmmt_feb_2025",
        "hmmt25_nov": "MathArena/hmmt_nov_2025",
        "hmmt26_feb": "MathArena/hmmt_feb_2026",
        "brumo25": "MathArena/brumo_2025",
        "gpqa_diamond": "Idavidrein/gpqa",
        "mmlu_pro": "TIGER-Lab/MMLU-Pro",
        "eurus2_rl_code": "PRIME-RL/Eurus-2-RL-Data",
        "humaneval_plus": "evalplus/humanevalplus",
        "mbpp_plus": "evalplus/mbppplus",
        "livecodebench": "json",
    }
    splits = {name: source.options["split"] for name, source in SOURCES.items()}
    for name in ("mmlu_pro", "humaneval_plus", "mbpp_plus"):
        assert splits.pop(name) == "test"
    assert set(splits.values()) == {"train"}
    assert SOURCES["gpqa_diamond"].options["name"] == "gpqa_diamond"


def play_hub(monkeypatch, table):
    """Make load_dataset return `table` for every data set."""
    table = Dataset.from_list(table)
    monkeypatch.setattr(hub_module, "load_dataset", lambda *names, **options: table)


@pytest.mark.parametrize(
    "name, hub, revision",
    [("deepmath", "zwhe99/DeepMath-103K", None), ("a/b", "a/b", None), ("a/b@v1.2", "a/b", "v1.2")],
)
def test_the_requested_revision_is_loaded_and_its_commit_is_printed(
    name, hub, revision, monkeypatch, capsys
):
    source = SOURCES.get(name)
    columns = (source.problem_column, source.answer_column) if source else ("problem", "answer")
    table = Dataset.from_list([dict(zip(columns, ("1+1?", "2"), strict=True))])
    commit = "0123456789" * 4
    asked = []

    def load(name, **options):
        asked.append((name, options["revision"]))
        return table

    def info(name, **options):
        asked.append((name, options["revision"]))
        return SimpleNamespace(sha=commit)

    monkeypatch.setattr(hub_module, "load_dataset", load)
    monkeypatch.setattr(hub_module.HfApi, "dataset_info", staticmethod(info))
    assert load_problems(name) == PROBLEMS[:1]
    assert asked == [(hub, revision), (hub, commit)]
    assert f"{name}: {hub} at revision {commit}\n" in capsys.readouterr().out

    def not_there(*_, **__):
        raise ValueError("no such name")

    monkeypatch.setattr(hub_module.HfApi, "dataset_info", not_there)
    load_problems(name)
    assert asked[-1] == (hub, revision)
    assert f"at revision {revision or 'unknown'}\n" in capsys.readouterr().out


def test_gpqa_shuffles_its_answers_and_tracks_the_right_one(monkeypatch):
    table = []
    for i in range(8):
        table.append(
            {
                "Question": f"q{i}",
                "Correct Answer": "right",
                "Incorrect Answer 1": "wrong1",
                "Incorrect Answer 2": "wrong2",
                "Incorrect Answer 3": "wrong3",
            }
        )
    play_hub(monkeypatch, table)
    problems = load_problems("gpqa_diamond")
    assert len({each["answer"] for each in problems}) > 1
    for i, each in enumerate(problems):
        lines = each["problem"].split("\n")
        assert lines[0] == f"q{i}"
        assert [line[:4] for line in lines[1:5]] == ["(A) ", "(B) ", "(C) ", "(D) "]
        assert sorted(line[4:] for line in lines[1:5]) == ["right", "wrong1", "wrong2", "wrong3"]
        assert f"({each['answer']}) right" in lines
        assert lines[5] == "Answer with the letter."
        assert each["choice"] is True
    assert problems == load_problems("gpqa_diamond")


def test_mmlu_pro_has_600_problems_with_their_options_in_order(monkeypatch):
    options = list("uvwxyzabcd")
    table = [{"question": f"q{i}", "options": options, "answer": "J"} for i in range(700)]
    play_hub(monkeypatch, table)
    problems = load_problems("mmlu_pro")
    assert len({each["problem"] for each in problems}) == 600
    assert "(A) u\n(B) v\n" in problems[0]["problem"]
    assert "(J) d\n" in problems[0]["problem"]
    assert all(each["answer"] == "J" and each["choice"] for each in problems)
    assert problems == load_problems("mmlu_pro")

    play_hub(monkeypatch, table[:7])
    assert len(load_problems("mmlu_pro")) == 7


def test_cell_text_restores_integers():
    cells = [None, 2, 2.0, 2.5, " x ", "2.0"]
    assert [cell_text(cell) for cell in cells] == ["", "2", "2", "2.5", "x", "2.0"]


def test_toy_sets_do_not_overlap_and_the_held_out_set_ignores_the_seed():
    train = load_problems("toy", seed=3)
    held_out = load_problems("toy-held-out", seed=3)
    assert held_out == load_problems("toy-held-out", seed=4)
    assert train != load_problems("toy", seed=4)

    common = {each["problem"] for each in held_out} & {each["problem"] for each in train}
    assert len(common) < 5  # only by chance


# ---- prompts ----------------------------------------------------------------------------------

CHAINS = [{"problem": "1+2=?"}, {"problem": "1+2*3=?"}]  # 5 and 7 tokens


def test_encode_prompts_without_a_template_encodes_the_problem():
    tokenizer = toy.build_tokenizer()
    problems, prompts = encode_prompts(CHAINS, tokenizer, 10)
    assert problems == CHAINS
    assert prompts == [tokenizer(each["problem"]).input_ids for each in CHAINS]


def test_encode_prompts_drops_and_counts_prompts_over_the_limit(capsys):
    tokenizer = toy.build_tokenizer()
    problems, prompts = encode_prompts(CHAINS, tokenizer, 5)
    assert problems == CHAINS[:1]
    assert prompts == [tokenizer("1+2=?").input_ids]
    assert "1 of 2 problems dropped" in capsys.readouterr().out

    with pytest.raises(UserError, match="shortest has 5 tokens"):
        encode_prompts(CHAINS, tokenizer, 4)
    assert encode_prompts([], tokenizer, 4) == ([], [])


def test_encode_prompts_fills_in_the_users_template():
    tokenizer = toy.build_tokenizer()
    _, prompts = encode_prompts(CHAINS, tokenizer, 20, "7{problem}8")
    assert tokenizer.batch_decode(prompts) == ["71+2=?8", "71+2*3=?8"]
    with pytest.raises(UserError, match="{problem}"):
        encode_prompts(CHAINS, tokenizer, 20, "7")


def test_a_line_break_in_the_template_may_be_typed_as_backslash_n():
    seen = []

    def tokenizer(text):
        seen.append(text)
        return SimpleNamespace(input_ids=[1])

    tokenizer.chat_template = None
    encode_prompts(CHAINS[:1], tokenizer, 20, r"Q: {problem}\nA:")
    assert seen == ["Q: 1+2=?\nA:"]


def test_encode_prompts_adds_the_instruction_to_a_chat():
    tokenizer = toy.build_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}7{% endif %}"
    )
    _, prompts = encode_prompts(CHAINS, tokenizer, 200)
    assert prompts[0] == tokenizer(f"1+2=?\n{INSTRUCTION}7").input_ids
    assert "\\boxed{" in tokenizer.decode(prompts[0])

    _, prompts = encode_prompts(CHAINS, tokenizer, 200, "{problem}8")  # overrides the chat's
    assert tokenizer.decode(prompts[0]) == "1+2=?8"


# ---- the order of problems --------------------------------------------------------------------


def test_draw_indices_is_an_endless_stream_of_shuffled_epochs():
    stream = draw_indices(10, 0, 30, seed=1)
    epochs = [stream[:10], stream[10:20], stream[20:]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1]
    assert draw_indices(10, 0, 30, seed=2) != stream


def test_draw_indices_continues_where_it_stopped():
    stream = draw_indices(10, 0, 60, seed=1)
    parts = []
    for position in range(0, 60, 4):
        parts += draw_indices(10, position, 4, seed=1)
    assert parts == stream
    assert draw_indices(10, 7, 35, seed=1) == stream[7:42]
