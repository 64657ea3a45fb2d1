"""The vocabulary of the code toy, and its word-level tokenizer."""

import re

from transformers import PreTrainedTokenizerFast

from toy.tokenizer import word_tokenizer

ARITHMETIC = ["+", "-", "*", "//", "%"]
BOUNDS = ["min", "max"]
COMPARISONS = ["<", "<=", ">", ">=", "==", "!="]
NAMES = list("abc")
CONSTANTS = list("123456789")

OPENING = "\n```python\n"  # opens a program
HEAD = "def f("
RETURN = "):\n    return "
CLOSING = "\n```"

SPECIAL = ["<pad>", "<eos>", "<unk>"]  # never part of a text
VOCABULARY = SPECIAL + [OPENING, HEAD, RETURN, CLOSING]
VOCABULARY += [f" {name} " for name in ARITHMETIC + COMPARISONS]
VOCABULARY += [f"{name}(" for name in BOUNDS]
VOCABULARY += NAMES + CONSTANTS
VOCABULARY += ["(", ")", ", "]

# only in problems
VOCABULARY += ["f(", "): take ", ") = ", "\n", "0", "-", "True", "False"]
VOCABULARY += ["add ", "plus ", "subtract ", "minus ", "times ", "multiply ", "divide ", "over "]
VOCABULARY += ["modulo ", "remainder ", "most ", "cap ", "least ", "raise ", "by ", "at ", "to "]
VOCABULARY += ["is ", "it ", "not ", "below ", "above ", "less ", "more ", "than ", "equal "]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer over VOCABULARY; decode(encode(text)) returns the text.

    The longest matching token wins.
    """
    words = [token for token in VOCABULARY if token not in SPECIAL]
    longest_first = sorted(words, key=len, reverse=True)
    pattern = "|".join(re.escape(token) for token in longest_first)

    return word_tokenizer(VOCABULARY, f"{pattern}|.")
