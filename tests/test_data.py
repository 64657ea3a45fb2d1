"""data.py: local files with the columns of the known sources, what is dropped and said, prompts and grades."""
import csv
import json

import pytest
import pyarrow as pa
import pyarrow.parquet as pq

import data
import toy
from data import UserError, encode_prompts, grade, load_problems

ROWS = [{"problem": "1+1?", "answer": "2"}, {"problem": "2+2?", "answer": "4"}]


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_load_problems_reads_local_files(tmp_path, suffix):
    assert load_problems(write(tmp_path / f"a{suffix}", ROWS)) == ROWS
    renamed = [{"q": r["problem"], "a": int(r["answer"]), "solution": "long"} for r in ROWS]
    assert load_problems(write(tmp_path / f"b{suffix}", renamed), "q", "a") == ROWS


def test_load_problems_drops_and_counts_the_empty_and_the_repeated(tmp_path, capsys):
    rows = [*ROWS, {"problem": "", "answer": "3"}, {"problem": "3+3?", "answer": None}, {"problem": "1+1?", "answer": "3"}]
    assert load_problems(write(tmp_path / "a.jsonl", rows)) == ROWS  # of repeated problems the first counts
    assert "3 of 5 problems dropped" in capsys.readouterr().out


@pytest.mark.parametrize("rows, columns, message", [
    (ROWS, ("question", "answer"), "no column question"), ([{"problem": "", "answer": ""}], ("problem", "answer"), "holds no problem")])
def test_load_problems_says_what_is_wrong(tmp_path, rows, columns, message):
    with pytest.raises(UserError, match=message):
        load_problems(write(tmp_path / "a.jsonl", rows), *columns)
    with pytest.raises(UserError, match="cannot load"):
        load_problems(str(tmp_path / "missing.jsonl"))
    (tmp_path / "broken.parquet").write_text("no parquet")
    with pytest.raises(UserError, match="cannot load"):
        load_problems(str(tmp_path / "broken.parquet"))


@pytest.mark.parametrize("name", sorted(set(data.SOURCES) - {"gpqa_diamond", "mmlu_pro"}))
def test_known_sources_ask_the_hub_for_their_columns(name, tmp_path, monkeypatch):
    """The hub is played by a local file with the source's columns; integer answers and columns we do not need included."""
    hub, options, problem, answer = data.SOURCES[name]
    path = write(tmp_path / "a.parquet", [{problem: "1+1?", answer: 2, "solution": "x"}, {problem: "2+2?", answer: 4, "solution": "y"}])
    asked, load = [], data.load_dataset

    def fake(asked_hub, **asked_options):
        asked.append((asked_hub, dict(asked_options)))
        return load("parquet", data_files=path, **asked_options)

    monkeypatch.setattr(data, "load_dataset", fake)
    assert load_problems(name) == ROWS and asked == [(hub, options)]


def test_multiple_choice_sources(monkeypatch):
    from datasets import Dataset
    gpqa = Dataset.from_list([{"Question": f"q{i}", "Correct Answer": "right", **{f"Incorrect Answer {j}": f"wrong{j}" for j in (1, 2, 3)}} for i in range(8)])
    monkeypatch.setattr(data, "load_dataset", lambda *a, **k: gpqa)
    problems = load_problems("gpqa_diamond")
    assert all(f"({p['answer']}) right" in p["problem"] and p["choice"] for p in problems) and len({p["answer"] for p in problems}) > 1
    assert grade("I say \\boxed{A}", {"answer": "A", "choice": True}) == 1.0 and grade("The answer is (B)", {"answer": "A", "choice": True}) == 0.0
    mmlu = Dataset.from_list([{"question": f"q{i}", "options": list("uvwxyzabcd"), "answer": "J"} for i in range(700)])
    monkeypatch.setattr(data, "load_dataset", lambda *a, **k: mmlu)
    problems = load_problems("mmlu_pro")
    assert len(problems) == 600 and "(J) d" in problems[0]["problem"] and problems == load_problems("mmlu_pro")


def test_toy_sets_do_not_overlap_and_the_held_out_set_is_the_same_for_every_seed():
    train, held_out = load_problems("toy", seed=3), load_problems("toy-held-out", seed=3)
    assert held_out == load_problems("toy-held-out", seed=4) and train != load_problems("toy", seed=4)
    assert len({p["problem"] for p in held_out} & {p["problem"] for p in train}) < 5


def test_encode_prompts_template_chat_and_limit(capsys):
    tokenizer = toy.build_tokenizer()
    problems = [{"problem": "1+2=?"}, {"problem": "1+2*3=?"}]
    assert encode_prompts(problems, tokenizer, 10)[1] == [tokenizer(p["problem"]).input_ids for p in problems]
    assert encode_prompts(problems, tokenizer, 5) == (problems[:1], [tokenizer("1+2=?").input_ids])
    assert "1 of 2 problems dropped" in capsys.readouterr().out
    with pytest.raises(UserError, match="shortest has 5 tokens"):
        encode_prompts(problems, tokenizer, 4)
    assert tokenizer.decode(encode_prompts(problems, tokenizer, 20, "7{problem}8")[1][0]) == "71+2=?8"
    with pytest.raises(UserError, match="{problem}"):
        encode_prompts(problems, tokenizer, 20, "7")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}7{% endif %}"
    text = tokenizer.decode(encode_prompts(problems, tokenizer, 200)[1][0])
    assert text.startswith("1+2=?") and text.endswith("7") and "\\boxed{" in text


def test_grade_is_the_reward_for_free_answers():
    assert grade("\\boxed{\\frac12}", {"answer": "0.5"}) == 1.0 and grade("\\boxed{3}", {"answer": "0.5"}) == 0.0
