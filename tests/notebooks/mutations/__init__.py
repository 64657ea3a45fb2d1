"""What is broken on purpose in the notebooks, to see that their assertions can fail.

notebook_N.py has the list MUTATIONS of notebook N. test_notebooks.py puts each in the place of the
right text and runs the notebook from there up to the assertion that must fail; and every assertion
of the notebook must be broken by one of them. Where a notebook trains, SMALLER says what stands in
the place of its settings in tests.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One wrong text in one code cell, and the assertion that it breaks.

    The assertion stands in the same cell or in a later one, and it is the first that fails. For
    instance, with the two sides of an update swapped:

        Mutation(
            old="mass_pos * mu_pos - mass_neg * mu_neg",
            new="mass_neg * mu_neg - mass_pos * mu_pos",
            breaks="assert error < 1e-4",
        )
    """

    old: str  # occurs once in the whole notebook's code
    new: str
    breaks: str  # the beginning of the assertion's first line; no other assertion begins so
