"""Grades programs by their tests, in a sandbox. README.md explains how, also for other projects."""


class ProgramsError(ValueError):
    """Programs cannot be judged here. The message is one line: what is wrong, where, what to do."""
