"""From a program to passed or not: the reward of programming problems, in a sandbox.

Imports nothing but the standard library. README.md tells how it works and how to use it alone.
"""


class ProgramsError(ValueError):
    """Why programs cannot be judged here, as one line: what is wrong, where, and what to do."""
