r"""The text of an answer -> equal to a gold answer or not: all that stands behind verify.py.

1. `extraction` finds the answer: the last box, else what is stated, else a result at the end. It
   is nothing if the words around it (`wording`) take it back, deny it, or make it a part of more.
2. `latex` gives it one spelling, of `characters` and commands: 2 \times ½ is 2 * \frac{1}{2}.
3. `structure` reads that once into a small tree of lists, brackets, relations and quantities.
4. `comparison` compares two trees member by member, by their kinds; `equations` knows what an
   equation states, `inequalities` which interval is meant, `renaming` which names are free.
5. `expressions` reads a leaf into the steps that compute it; `values` compares two of them by
   their values, at random points where they have names; `arithmetic` computes exactly, or to many
   digits.
6. `units` and words.txt list what may stand beside a number. Everything else is spelling.
"""
