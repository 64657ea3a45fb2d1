"""Grades programs by their tests, in a sandbox. README.md says how, and how to use it elsewhere."""


class ProgramsError(ValueError):
    """Programs cannot be judged here. The message is one line: what is wrong, where, what to do."""
