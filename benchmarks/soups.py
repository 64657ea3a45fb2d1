"""verify.py on random token soups: no exception on any, and the slowest call.

A soup is up to 40 tokens of LaTeX, half of them of what answers are made of, half of what breaks
readers. Soup i depends on i alone; the prediction and the gold answer are both soups. Times are
seconds of this process on a core: three million calls meet everything else that a machine does.
"""

import random
import statistics
import time

from tqdm import tqdm

from infra.errors import UserError
from verify import reward

ORDINARY = (
    r"0 1 2 3 5 7 10 12 100 3.5 x y n k a b e i \pi + - * / ^ _ = , ( ) [ ] { } \frac \sqrt < > |"
)
UNUSUAL = (
    r"\text{ \text{cm} \text{or} \mathrm{ \{ \} \pm \mp \cup \in \le \ge \ne \approx \infty"
    r" \quad \, \! \left \right \lfloor \rfloor \lceil \rceil \log \sin \arcsin \tan \exp"
    r" \binom \overline{ \begin{pmatrix} \end{pmatrix} & \\ : ; . % ^\circ ^{-1} f( f' g(x) x_"
    r" \boxed{ \boxed{5} ! $ \( \) \[ and or cm 1,000 1{,}000 10^9 10^{100} 99999 !! \rho"
    r" \alpha \mathbb{R} \max \sum ² √ π ∞ −"
)
TOKENS = [*ORDINARY.split(), *UNUSUAL.split(), " "]
WEIGHTS = [3] * len(ORDINARY.split()) + [1] * (len(TOKENS) - len(ORDINARY.split()))
MAX_TOKENS = 40
KEPT = 5  # of the slowest


def soups(args) -> dict:
    """Grade --soups pairs of soups; print what earned a reward and the slowest calls."""
    if args.soups < 1:
        raise UserError("--soups must be at least 1")
    seconds = []
    slowest = []
    right = 0
    for i in tqdm(range(args.soups), desc="soups", disable=None):
        response, gold = soup(i)
        start = time.process_time()
        right += reward(response, gold)
        seconds.append(time.process_time() - start)
        if len(slowest) < KEPT or seconds[-1] > slowest[-1][0]:
            slowest = sorted([*slowest, (seconds[-1], response, gold)], reverse=True)[:KEPT]

    median = statistics.median(seconds)
    print(
        f"{args.soups:,} soups, no exception, {right:.0f} rewards; median {median * 1e3:.3f} ms, "
        f"slowest {slowest[0][0] * 1e3:.1f} ms"
    )
    for time_taken, response, gold in slowest:
        print(f"{time_taken * 1e3:8.1f} ms  {response!r} for {gold!r}")
    return {"soups": args.soups, "median_s": median, "slowest_s": slowest[0][0]}


def soup(i: int) -> tuple[str, str]:
    """(response, gold answer) number i: mostly in a box, and one in ten against itself."""
    draw = random.Random(i)
    answer = mixed(draw)
    gold = answer if i % 10 == 0 else mixed(draw)
    response = answer if i % 5 == 1 else f"\\boxed{{{answer}}}"
    return response, gold


def mixed(draw: random.Random) -> str:
    return "".join(draw.choices(TOKENS, WEIGHTS, k=draw.randint(1, MAX_TOKENS)))
