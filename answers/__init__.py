r"""Decides whether the answer in a response equals a gold answer: the machinery of verify.py.

`extraction` finds the answer in the response, `latex` gives it one spelling as a list of tokens,
`parser` makes the tokens a tree, and `comparison` compares two trees. `values` computes
expressions, and `units` lists the words that may stand beside a number.
"""


class Unreadable(Exception):
    """The answer is not in the grammar, or exceeds a limit: only the same tokens equal it."""


class Undefined(ArithmeticError):
    """The expression has no value, such as 0/0, or one beyond the limits: it equals nothing."""
