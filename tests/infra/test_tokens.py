"""Tests infra/tokens.py: the tokens that end a response, and the text of a response."""

from types import SimpleNamespace

import pytest
from models import byte_tokenizer

from infra.errors import UserError
from infra.tokens import end_tokens, text_decoder

CLOSED = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TEMPLATES = [  # (a chat template, the token that closes an assistant's turn)
    (None, None),
    (CLOSED, "<|im_end|>"),
    (CLOSED.replace("<|im_end|>", " {{ eos_token }}"), "<end>"),
    (CLOSED.replace("<|im_end|>", " <turn>"), "<turn>"),  # added, not special
    (CLOSED.replace("<|im_end|>", "\n\n# "), None),  # ordinary text, before a special token
    ("{% for m in messages %}{{ m.content }}\n\n<s>{% endfor %}", "<s>"),
    ("<s>{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", None),
]


def tokenizer_with(chat_template: str | None, *more: str):
    special = ["<s>", "<|start|>", "<|im_end|>", *more]
    tokenizer = byte_tokenizer(extra_special_tokens=special)
    tokenizer.add_tokens(["<turn>", "\n\n"])
    tokenizer.chat_template = chat_template
    return tokenizer


def model_with(end: int | list[int] | None):
    return SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=end))


@pytest.mark.parametrize("chat_template, closes", TEMPLATES)
@pytest.mark.parametrize("configured, given", [(None, []), (7, [7]), ([5, 6], [5, 6])])
def test_end_tokens_are_the_tokenizers_the_models_and_the_chat_templates(
    chat_template, closes, configured, given
):
    tokenizer = tokenizer_with(chat_template)
    ends = {*given, *tokenizer.convert_tokens_to_ids(["<end>", closes or "<end>"])}
    assert end_tokens(model_with(configured), tokenizer) == sorted(ends)


def test_a_model_without_an_end_token_is_refused():
    tokenizer = tokenizer_with(None)
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="--model .*: set eos_token_id"):
        end_tokens(model_with(None), tokenizer)


def test_a_chat_template_that_fails_at_an_assistants_turn_is_one_line():
    fails = "{% if messages[-1].role != 'user' %}{{ raise_exception('users only') }}{% endif %}"
    with pytest.raises(UserError, match="fails at an assistant's turn .*users only"):
        end_tokens(model_with(7), tokenizer_with(fails))


def test_texts_keep_tags_of_thought_and_no_other_special_token():
    tokenizer = tokenizer_with(None, "<think>", "</think>", "[THINK]", "<|channel>")
    text = text_decoder(tokenizer)
    response = tokenizer("<think>a</think> <b> [THINK]é<|channel>a<|im_end|><end>").input_ids
    assert text([], response) == "<think>a</think> <b> [THINK]é<|channel>a"
    for prompt, opened in (("Why?<think>\n", "<think>"), ("<think>\n\n</think>\n\n", "")):
        assert text(tokenizer(prompt).input_ids, response[1:2]) == f"{opened}a"
