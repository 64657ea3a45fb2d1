"""The embedded task: chains of sums mod 10, their tokenizer, and small Qwen3s that often err.

A problem is a chain of k operations on one digit, worked from left to right, everything mod 10. A
response opens each step with `filler` connectives drawn at random, copies the two operands, states
one result, and ends in a box:

    problem   7*6+1-4=?            (k = 3, answer 9)
    response  So 7*6=2             7*6 = 42
              Then 2+1=3
              Now 3-4=9            3-4 = -1
              answer \\boxed{9}

A base model is trained on demonstrations with errors, from which the chain then goes on. So it has
the format and errs in the arithmetic. There are two regimes, the first with two mistakes:

learn     A product is wrong with probability 0.55: always by the same amount, so that the most
          likely product is wrong, and a model that is asked greedily fails. Other results slip now
          and then. RLVR has to teach something. `learn-minus` is the same for differences.
sharpen   Every result slips, with probability `noise`, to a random digit. The most likely result is
          the right one, and a model that is asked greedily makes no error. RLVR only has to take
          probability from the rest.

Few tokens decide the answer (the results), many do not (connectives, copies, the frame), and here,
as on no real data set, we know which: `decisive` marks them.

task.py        problems, worked responses, the tokens that decide
tokenizer.py   the vocabulary of 30 tokens, or of 270 with many connectives
base.py        the base models, committed or built at need
build.py       makes the committed ones again
measure.py     what each of them can do before training
bases/         the committed ones
by_name.py     the sets of problems, and which tokens of a problem's response decide
presets.py     the defaults of train.py for the toys

The same for programs, `--model toy-code`: code_task.py, code_tokenizer.py, code_base.py.
"""

from toy import code_task as code_task
from toy.base import base_folder as base_folder
from toy.base import base_model as base_model
from toy.base import build_model as build_model
from toy.base import load_base as load_base
from toy.base import train_base as train_base
from toy.code_base import code_base_folder as code_base_folder
from toy.code_base import code_base_model as code_base_model
from toy.task import chain as chain
from toy.task import decisive as decisive
from toy.task import demonstration as demonstration
from toy.task import problems as problems
from toy.tokenizer import CONNECTIVES as CONNECTIVES
from toy.tokenizer import TOKEN_ID as TOKEN_ID
from toy.tokenizer import VOCABULARY as VOCABULARY
from toy.tokenizer import build_tokenizer as build_tokenizer
