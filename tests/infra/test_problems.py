"""Tests infra/problems.py: records become problems, and problems become prompts."""

import json
import math
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from models import byte_tokenizer
from tokenizers.processors import TemplateProcessing

import toy
from infra.errors import UserError
from infra.grading import grade_all
from infra.problems import INSTRUCTION, encode_prompts, load_problems, refuse_length
from programs.problems import CODE_INSTRUCTION

PROBLEMS = [{"problem": "1+1?", "answer": "2"}, {"problem": "2+2?", "answer": "4"}]
CHAT = [{"role": "system", "content": "1"}, {"role": "user", "content": "2+3=?"}]
SOLVED = [*CHAT, {"role": "assistant", "content": "It is 5."}]


def verl(chat, ability, gold):
    """A record of DAPO-Math-17k."""
    model = {"ground_truth": gold, "style": "rule"}
    return {"data_source": "d", "prompt": chat, "ability": ability, "reward_model": model}


def write(path, records):
    """Write records as .jsonl or .parquet. Returns the path as a string."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_load_problems_drops_and_counts_gaps_and_repeats(tmp_path, capsys):
    records = [
        {"problem": "1+1?", "answer": None},  # the first repeat that has an answer is kept
        *PROBLEMS,
        {"problem": " ", "answer": "3"},
        {"problem": "3+3?", "answer": float("nan")},
        {"problem": "4+4?"},
        *PROBLEMS,
        {"problem": "1 + 1 ?", "answer": "2.0"},
    ]
    path = write(tmp_path / "a.jsonl", records)
    assert load_problems(path) == PROBLEMS
    assert capsys.readouterr().out == (
        f"--data {path}: 7 of 9 records are dropped\n"
        "  4 without a text or an answer; the first is record 1, '1+1?'\n"
        "  3 that repeat an earlier one; the first is record 7, '1+1?', '2'\n"
    )


@pytest.mark.parametrize(
    "record, message",
    [
        ({"query": "1", "answer": 2}, " has no column problem, only query, answer: see --problem-"),
        ({"question": "1", "final": 2}, " has no column problem, only question, final: see --pro"),
        ({"problem": SOLVED, "answer": "2"}, ", record 1, ends with a message of the assistant:"),
        (verl(SOLVED, "MATH", "2"), ", record 1, ends with a message of the assistant:"),
        (verl(CHAT, "MATH", [2]), ", record 1, column reward_model.ground_truth, holds a list:"),
        ({"problem": "1", "answer": None}, " holds no problem with an answer: see --answer-column"),
        ({"problem": "1\ud800", "answer": "1"}, ", record 1, 'utf-8' codec can't encode character"),
        ({"problem": "1", "answer": ["1", "2"]}, ", record 1, column answer, holds a list: write"),
        (verl([{"from": "human", "value": "1"}], "MATH", "2"), ", record 1, column prompt, holds"),
        ({"problem": "1", "tests": [7]}, ", record 1, column tests, test 1, is not a dictionary"),
    ],
)
def test_load_problems_names_the_record_and_the_column(record, message, tmp_path):
    path = write(tmp_path / "a.jsonl", [record])
    with pytest.raises(UserError) as refused:
        load_problems(path, flag="--benchmarks")
    assert str(refused.value).startswith(f"--benchmarks {path}{message}")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_options_that_the_model_would_not_see_are_refused(suffix, tmp_path):
    path = write(tmp_path / f"a.{suffix}", [{"question": "q", "choices": ["u", "v"], "answer": 1}])
    with pytest.raises(UserError, match="would not see the options in choices"):
        load_problems(path, "question", "answer")


RATIONALE = "48/2 = <<48/2=24>>24 clips in May.\n48+24 = <<48+24=72>>72 clips in both.\n#### 72"
MATH = {"level": "Level 1", "solution": "So $x=\\boxed{\\frac{1}{2}}$, as asked."}


@pytest.mark.parametrize(
    "record, columns, right",
    [
        ({"question": "1", "answer": RATIONALE}, (), "72"),  # GSM8K
        ({"question": "1", "answer": "Three.\n#### 3"}, ("question", "answer"), "3"),
        ({"question": "1", "answer": "#### 1,200"}, (), "1200"),
        ({"question": "1", "answer": 1200}, (), "1,200"),
        ({"question": "1", "result": 7, "answer": "5"}, ("problem", "result"), "7"),
        (verl(CHAT, "MATH", "34"), (), "34"),
        ({"problem": "1", "answer": "0.5", **MATH}, (), "1/2"),  # MATH-500, with "subject"
        ({"problem": "1", **MATH}, ("problem", "solution"), "0.5"),
        ({"problem": "1", "answer": "$\\boxed{1}$ and $\\boxed{2}$"}, (), "1, 2"),
        ({"problem": "1", "answer": "It is \\boxed{5} feet or so"}, (), "5"),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_the_gold_of_a_worked_solution_is_its_result(suffix, record, columns, right, tmp_path):
    (problem,) = load_problems(write(tmp_path / f"a.{suffix}", [record]), *columns)
    responses = [f"\\boxed{{{right}}}", "\\boxed{48}"]
    assert grade_all(responses, 2 * [problem], 2 * [False]) == [1.0, 0.0]
    assert len(problem["answer"]) < 12


LONG = "123456789012345678901234567890"
MIXED = '{"problem": "2", "answer": "one"}\n{"problem": "3", "answer": 3}\n'


@pytest.mark.parametrize("number, text", [(LONG, LONG), ("2.0", "2"), ('"2.0"', "2.0")])
def test_json_numbers_keep_their_digits(number, text, tmp_path):
    (tmp_path / "a.jsonl").write_text(f'{{"problem": "1", "answer": {number}}}\n' + MIXED)
    answers = [each["answer"] for each in load_problems(str(tmp_path / "a.jsonl"))]
    assert answers == [text, "one", "3"]


def test_verl_records_hold_answers_or_programs(tmp_path):
    tests = json.dumps({"inputs": ["1"], "outputs": ["2"]})
    records = [verl(CHAT, "MATH", "34"), verl(CHAT[1:], "code", tests)]
    first, second = load_problems(write(tmp_path / "a.parquet", records))
    assert first == {"problem": "1\n2+3=?", "chat": CHAT, "answer": "34"}
    assert second["tests"] == [{"input": "1", "output": "2"}]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_parquet_numbers_are_exact_integers_or_the_floats_that_were_written(kind, tmp_path):
    golds = pa.array([2.0, 0.1, None, math.nan, 15300.75, -3.0], kind)
    pq.write_table(pa.table({"problem": list("abcdef"), "answer": golds}), tmp_path / "a.parquet")
    answers = [each["answer"] for each in load_problems(str(tmp_path / "a.parquet"))]
    assert answers == ["2", "0.1", "15300.75", "-3"]


def test_a_file_may_mix_answers_and_tests_whose_numbers_are_floats(tmp_path):
    tests = [{"function": "half", "args": [1.5, [2, 0.25]], "expected": 0.75}]
    answer, program = {"problem": "r", "answer": "7"}, {"problem": "p", "tests": tests}
    records = [program, {"problem": "q", "tests": json.dumps(tests)}, answer]
    problems = load_problems(write(tmp_path / "a.jsonl", [*records, {"problem": "s", "tests": []}]))
    assert problems == [program, {"problem": "q", "tests": tests}, answer]
    assert json.dumps(problems[0]["tests"]) == json.dumps(tests)


CHAINS = [{"problem": "1+2=?"}, {"problem": "1+2*3=?"}]  # 5 and 7 tokens
CONTENTS = (
    "{% for m in messages %}{% if m.role == 'user' %}8{% endif %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}7{% endif %}"
)


def tokenizer_with(chat_template: str | None):
    """The toy's tokenizer with a chat template."""
    tokenizer = toy.build_tokenizer()
    tokenizer.chat_template = chat_template
    tokenizer.name_or_path = "some/model"
    return tokenizer


def test_encode_prompts_drops_and_counts_prompts_over_the_limit(capsys):
    tokenizer = tokenizer_with(None)
    tokens = [tokenizer(each["problem"]).input_ids for each in CHAINS]
    assert encode_prompts(CHAINS, tokenizer, 7) == (CHAINS, tokens)
    assert encode_prompts(CHAINS, tokenizer, 5) == (CHAINS[:1], tokens[:1])
    assert "1 of 2 prompts dropped" in capsys.readouterr().out
    with pytest.raises(UserError, match="every prompt exceeds --max-prompt-tokens 4: raise it"):
        encode_prompts(CHAINS, tokenizer, 4)
    assert encode_prompts([], tokenizer, 4) == ([], [])


TYPED, FILLED = r"7{problem}\n8", "71+2=?\n8"  # a line break may be typed as a backslash and an n
TEXTS = [  # chat template, --prompt-template, what a problem has beside 1+2=?, its prompt
    (None, "", {}, f"1+2=?\n{INSTRUCTION}"),
    (None, "", {"tests": [7]}, f"1+2=?\n{CODE_INSTRUCTION}"),
    (None, TYPED, {"tests": [7]}, FILLED),
    (CONTENTS, "", {}, f"81+2=?\n{INSTRUCTION}7"),
    (CONTENTS, "", {"tests": [7]}, f"81+2=?\n{CODE_INSTRUCTION}7"),
    (CONTENTS, "", {"chat": CHAT}, "182+3=?7"),
    (CONTENTS, TYPED, {}, FILLED),
]


@pytest.mark.parametrize("chat_template, template, more, text", TEXTS)
def test_the_text_of_a_prompt(chat_template, template, more, text):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = chat_template
    _, (prompt,) = encode_prompts([CHAINS[0] | more], tokenizer, 200, template)
    assert tokenizer.decode(prompt) == text


def test_a_tokenizer_without_words_for_the_instruction_gets_the_problem_alone():
    tokenizer = tokenizer_with(None)
    for kind in ({}, {"tests": [7]}):
        _, prompts = encode_prompts([CHAINS[0] | kind], tokenizer, 9)
        assert prompts == [tokenizer("1+2=?").input_ids]


def test_a_prompt_template_that_does_not_fit_is_refused():
    problems, tokenizer = [*CHAINS, {"problem": "1", "chat": CHAT}], tokenizer_with(None)
    for template, said in (("7", "'7' has no {problem}"), (TYPED, "does nothing with problems th")):
        with pytest.raises(UserError, match=f"--prompt-template {said}"):
            encode_prompts(problems, tokenizer, 200, template)


@pytest.mark.parametrize("around", ["$A", "<s> $A", "$A <end>", "<s> $A <end>"])
@pytest.mark.parametrize("template", ["Q {problem}", "<s>Q {problem}"])
def test_a_prompt_has_at_most_one_bos_and_no_eos(around, template):
    tokenizer = byte_tokenizer(bos_token="<s>")
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "<end>")]
    tokenizer._tokenizer.post_processor = TemplateProcessing(single=around, special_tokens=special)
    _, (prompt,) = encode_prompts(CHAINS[:1], tokenizer, 50, template)
    begin = "<s>" if "<s>" in around + template else ""
    assert tokenizer.decode(prompt) == f"{begin}Q 1+2=?"


PARTS = "{% for m in messages %}{% for x in m.content %}{{ x.text }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("template", ["7", PARTS, CONTENTS.replace("m.content", "m.content[:2]")])
def test_a_chat_template_that_leaves_the_problem_out_is_refused(template):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UserError, match="its chat template fails: pass --prompt-template .*parts"):
        encode_prompts(CHAINS, tokenizer, 200)
    assert len(encode_prompts(CHAINS, tokenizer, 200, "{problem}")[1]) == 2


def test_a_chat_template_knows_one_day():
    """A run that is resumed on another day must have the same prompts."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ strftime_now('%d %B %Y') }} {{ strftime_now(\"%b\") }}" + CONTENTS
    _, (prompt,) = encode_prompts(CHAINS[:1], tokenizer, 200)
    assert tokenizer.decode(prompt).startswith("26 July 2024 Jul81+2=?")


@pytest.mark.parametrize("template", ["{{ raise_exception('System role\nnot supported') }}", None])
def test_a_chat_template_that_fails_is_one_line(template):
    with pytest.raises(UserError, match="some/model: its chat template fails: write ") as refused:
        encode_prompts([{"problem": "1", "chat": CHAT}], tokenizer_with(template), 200)
    assert "\n" not in str(refused.value)


def test_refuse_length_counts_the_prompt_and_the_response():
    config = SimpleNamespace(model_type="qwen3", max_position_embeddings=40, vocab_size=7)
    prompts = [[0] * 3, [0] * 8]
    refuse_length(config, prompts, 32)
    with pytest.raises(UserError, match="33 after a prompt of 8 tokens exceeds the 40 tokens"):
        refuse_length(config, prompts, 33)
    with pytest.raises(UserError, match="a prompt has token 7, but the model has 7"):
        refuse_length(config, [[0] * 8, [7, 5]], 1)
    config.rope_parameters = {"rope_type": "yarn", "original_max_position_embeddings": 20}
    refuse_length(config, [[0] * 8], 32)
    config.rope_parameters["rope_type"] = "longrope"
    with pytest.raises(UserError, match="exceeds the 20 tokens"):
        refuse_length(config, [[0] * 8], 13)


ROLES = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}"
ROLES += "{{ 'think' if enable_thinking is not defined or enable_thinking }}"


@pytest.mark.parametrize(
    "more, system, args, text",
    [
        ({}, "Be brief.", "", f"s:Be brief.|u:1+2=?\n{INSTRUCTION}|think"),
        ({}, "", '{"enable_thinking": false}', f"u:1+2=?\n{INSTRUCTION}|"),
        ({"chat": CHAT[1:]}, "2", "", "s:2|u:2+3=?|think"),
        ({"chat": CHAT}, "2", "", "s:1|u:2+3=?|think"),  # its own system message stays
    ],
)
def test_a_system_message_and_options_reach_the_chat_template(more, system, args, text):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = ROLES
    _, (prompt,) = encode_prompts([CHAINS[0] | more], tokenizer, 200, "", system, args)
    assert tokenizer.decode(prompt) == text


@pytest.mark.parametrize(
    "chat_template, template, system, args, said",
    [
        (None, "", "x", "", "--system and --template-args need a chat template"),
        (ROLES, "Q: {problem}", "x", "", "need a chat template, no --prompt-template"),
        (ROLES, "", "", '{"enable_thinkng": false}', "the chat template does not read enable_thi"),
        (ROLES, "", "", "{", "--template-args { is no JSON dictionary"),
        (ROLES, "", "", "7", "--template-args 7 is no JSON dictionary"),
        (ROLES, "", "\udcff", "", "its tokenizer cannot read a prompt"),
        (None, "{problem}\udcff", "", "", "its tokenizer cannot read a prompt"),
    ],
)
def test_what_the_chat_template_cannot_use_is_refused(chat_template, template, system, args, said):
    tokenizer = tokenizer_with(chat_template)
    with pytest.raises(UserError, match=said):
        encode_prompts(CHAINS, tokenizer, 200, template, system, args)
