"""Deliberate errors in the notebooks, which prove that the notebooks' assertions can fail.

notebook_N.py lists the MUTATIONS of notebook N. test_notebooks.py applies each mutation and runs
the notebook from there to the assertion that must fail. Every assertion in the notebook must be
broken by at least one mutation. If a notebook trains, SMALLER lists the settings that shorten its
training in tests.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A deliberate error in one code cell, and the assertion that it breaks.

    The assertion is in the same cell or a later one, and is the first to fail. For example, with
    the two sides of an update swapped:

        Mutation(
            old="mass_pos * mu_pos - mass_neg * mu_neg",
            new="mass_neg * mu_neg - mass_pos * mu_pos",
            breaks="assert error < 1e-4",
        )
    """

    old: str  # occurs exactly once in the notebook's code
    new: str
    breaks: str  # the start of the assertion's first line, unique in the notebook
