"""Log-probabilities in blocks against one log-softmax over all logits (`logprobs`).

Forward and backward at a vocabulary of 151,936 and hidden size 512: seconds, growth of the peak,
and by how much the two disagree.

Shapes: N tokens, H hidden size, V vocabulary.
"""

from collections.abc import Callable

import torch

from benchmarks.timing import alternate, peak_memory, spread
from infra.head import Head, token_logprobs
from studies.tables import table_line

VOCABULARY = 151936
HIDDEN = 512
SIZES = (512, 1024)  # tokens
MOST_REPETITIONS = 3  # one takes up to 13 seconds

HEADER = """\
| tokens | full, s | blocks, s | full, GB | blocks, GB | largest difference of log p, of gradients |
|---|---|---|---|---|---|"""


def in_one_piece(hidden: torch.Tensor, head: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """log p of each token, [N], by one log-softmax over [N, V]."""
    logp = (hidden @ head.T).log_softmax(dim=-1)  # [N, V]
    return logp.gather(1, token[:, None]).squeeze(1)


def in_blocks(hidden: torch.Tensor, head: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """The same as training computes it: [N]."""
    logprob, _ = token_logprobs(hidden, Head(head), token, with_entropy=False)
    return logprob


def forward_and_backward(
    function: Callable, tokens: int, hidden_size: int = HIDDEN, vocabulary: int = VOCABULARY
) -> Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """A function that returns log p [N], its gradient in the hidden states and in the head."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, hidden_size, generator=generator).requires_grad_()
    head = torch.randn(vocabulary, hidden_size, generator=generator) / hidden_size**0.5
    head.requires_grad_()
    token = torch.randint(vocabulary, (tokens,), generator=generator)

    def run():
        hidden.grad = None
        head.grad = None
        logprob = function(hidden, head, token)
        logprob.sum().backward()
        return logprob.detach(), hidden.grad, head.grad

    return run


def logprobs(args) -> list[dict]:
    """Print what both take, and how near they are."""
    print(HEADER)
    rows = []
    for tokens in SIZES:
        row = measured(tokens, min(args.repetitions, MOST_REPETITIONS))
        print(table_row(row), flush=True)
        rows.append(row)
    return rows


def measured(tokens: int, repetitions: int) -> dict:
    """Seconds, growth of the peak in GB, and largest differences between the two."""
    full = forward_and_backward(in_one_piece, tokens)
    blocks = forward_and_backward(in_blocks, tokens)
    seconds = alternate({"full": full, "blocks": blocks}, repetitions)
    memory = [
        peak_memory(forward_and_backward, in_one_piece, tokens),
        peak_memory(forward_and_backward, in_blocks, tokens),
    ]
    differences = [float((a - b).abs().max()) for a, b in zip(full(), blocks(), strict=True)]
    return {"tokens": tokens, **seconds, "memory_gb": memory, "differences": differences}


def table_row(row: dict) -> str:
    """A line of the table from what `measured` returns."""
    of_logprobs, *of_gradients = row["differences"]
    cells = [
        row["tokens"],
        spread(row["full"], 1),
        spread(row["blocks"], 1),
        *(f"{gb:.2f}" for gb in row["memory_gb"]),
        f"{of_logprobs:.1e}, {max(of_gradients):.1e}",
    ]
    return table_line(cells)
