r"""Compares the answer in a response with a gold answer: the implementation of verify.py.

1. `extraction` finds the answer: the last box, else a stated answer, else a result at the end. An
   answer does not count if the words around it (`wording`) retract, deny or extend it.
2. `latex` and `characters` normalise its spelling: 2 \times ½ becomes 2 * \frac{1}{2}.
3. `structure` parses the answer once into a small tree of lists, brackets, relations, quantities.
4. `comparison` compares two trees member by member, by kind. `equations` finds the value that an
   equation states, `inequalities` the interval, and `renaming` the names that may be chosen freely.
5. `expressions` compiles a leaf into the steps that compute it. `values` compares two leaves by
   value, at random points if they have variables. `arithmetic` computes exactly, or to 512 bits.
6. `units` and words.txt list the words that may follow a number.
"""
