"""Decides whether the answer in a response equals a gold answer: the machinery of verify.py."""


class Unreadable(Exception):
    """The answer is not in the grammar, or exceeds a limit: it equals only the same tokens."""


class Spent(Unreadable):
    """The comparison has used up its budget before it was decided."""


class Undefined(ArithmeticError):
    """The expression has no value, such as 0/0, or one beyond the limits: it equals nothing."""
