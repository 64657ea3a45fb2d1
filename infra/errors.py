"""The ways in which a program ends early and in good order.

A bug is none of them: it keeps its traceback.
"""


class UserError(ValueError):
    """A user's mistake, as one line: what is wrong, where, and what to do. Programs exit with 2."""


class Stop(Exception):
    """The run ends here, and nothing written is lost: a message and the code to exit with."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.message = message
        self.code = code


class Interrupted(Exception):
    """Sampling was told to stop; every rank abandons the batch."""


def first_line(error: Exception) -> str:
    """What a library's error says, as far as it fits in one of our lines."""
    return str(error).partition("\n")[0] or type(error).__name__
