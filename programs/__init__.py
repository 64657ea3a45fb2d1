"""Grades programs: runs a program against its tests in a sandbox. The reward of coding problems.

Imports only the standard library. README.md explains how it works and how to use it elsewhere.
"""


class ProgramsError(ValueError):
    """Programs cannot be judged here. The message is one line: what is wrong, where, what to do."""
