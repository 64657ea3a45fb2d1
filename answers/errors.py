"""Errors of expressions that cannot be read or have no value."""


class Unreadable(Exception):
    """The text is not in the grammar, or exceeds a limit."""


class Undefined(ArithmeticError):
    """The expression has no value: 0/0, ∞ - ∞, (-1)!."""


class OutOfFuel(Unreadable):
    """The comparison's budget is spent."""


class TooLarge(ArithmeticError):
    """The value has too many digits to write out, such as 10^{10^{10}}."""
