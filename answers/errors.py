"""The errors of an expression: it cannot be read, or it has no value."""


class Unreadable(Exception):
    """The text is not in the grammar, or exceeds a bound."""


class Undefined(ArithmeticError):
    """The expression has no value: 0/0, ∞ - ∞, (-1)!."""


class OutOfFuel(Unreadable):
    """The budget of a comparison is spent."""


class TooLarge(ArithmeticError):
    """The value is too long to write down, such as 10^{10^{10}}."""
