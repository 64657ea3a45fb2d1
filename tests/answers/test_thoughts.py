"""answers/thoughts.py: which tags open and close a thought."""

import pytest

from answers.thoughts import open_thought, without_thoughts

PAIRS = [
    ("<think>", "</think>"),
    ("<Thinking>", "</Thinking>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis", "<|channel|>final"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
]


@pytest.mark.parametrize("opens, closes", PAIRS)
def test_what_stands_between_tags_is_not_read(opens, closes):
    assert without_thoughts(f"a{opens}b{closes}c{opens}d{closes}e") == "e"
    assert without_thoughts(f"b{closes}c") == "c"  # the prompt opened the thought
    assert without_thoughts(f"{opens}b{closes}c{opens}d") == ""
    assert open_thought(f"Why?{opens}\n") == opens
    assert open_thought(f"{opens}\n{closes}\n") == ""
    assert open_thought(f"What is {opens}x?") == ""


@pytest.mark.parametrize("text", ["[think] [reasoning]", "a < think > b", "<thinker>", ""])
def test_other_words_are_no_tags(text):
    assert without_thoughts(text) == text
