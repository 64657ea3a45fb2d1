"""The toy task: chains of operations mod 10, a tokenizer, and small Qwen3 models that often err.

A problem is a chain of k operations on digits, worked from left to right, mod 10. A response opens
each step with a connective (the first step's is `So`, the second's `Then`, ...), copies the two
operands, and states one result. It ends with a box:

    problem   7*6+1-4=?            (k = 3, answer 9)
    response  So 7*6=2             7*6 = 42
              Then 2+1=3
              Now 3-4=9            3-4 = -1
              answer \\boxed{9}

A base model was trained on demonstrations with errors; after an error the chain continues from the
wrong result. So the base model knows the format but errs in the arithmetic. toy/README.md describes
the two bases, `learn` and `sharpen`, and has their numbers.

Only the results decide whether an answer is right; connectives, copied operands and the frame do
not. In real data sets nobody knows the decisive tokens. Here `decisive` marks them.

Read task.py first. code_task.py has the code toy (`--model toy-code`).
"""

from toy.base import BASES as BASES
from toy.base import base_model as base_model
from toy.task import chain as chain
from toy.task import decisive as decisive
from toy.task import problems as problems
from toy.tokenizer import CONNECTIVES as CONNECTIVES
from toy.tokenizer import TOKEN_ID as TOKEN_ID
from toy.tokenizer import VOCABULARY as VOCABULARY
from toy.tokenizer import build_tokenizer as build_tokenizer
