"""What may go wrong with an expression: it cannot be read, or it has no value."""


class Unreadable(Exception):
    """Not in the grammar, or beyond a bound."""


class Undefined(ArithmeticError):
    """Well written, and without a value: 0/0, ∞ - ∞, (-1)!."""


class OutOfFuel(Unreadable):
    """The budget of a comparison is spent."""


class TooLarge(ArithmeticError):
    """A value that is too long to write down, as 10^{10^{10}} is."""
