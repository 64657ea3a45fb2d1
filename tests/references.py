"""Reference maths for several tests: small batches, and DelTA one token at a time."""

import math
from types import SimpleNamespace

import torch

from infra.packing import TokenBatch
from infra.rows import Rows


def two_sides(N=61, H=5, seed=0, dtype=torch.float32):
    """(v [N, H], advantage [N]). Advantages: three positive values, two negative ones, and 0."""
    g = torch.Generator().manual_seed(seed)
    values = torch.tensor([1.7, -0.4, 0.0, 0.3, -2.1, 0.9])
    advantage = values[torch.randint(6, (N,), generator=g)]
    v = torch.randn(N, H, generator=g) * torch.rand(N, 1, generator=g) * 3 + 1.0
    v[advantage > 0, 0] += 0.7
    v[advantage < 0, 1] -= 0.4
    return v.to(dtype), advantage


def token_batch(lengths, seed=0, **changes) -> TokenBatch:
    """A random TokenBatch, v [N, 4]; the responses' advantages repeat 1, -1, 0.5, 0."""
    g = torch.Generator().manual_seed(seed)
    length = torch.tensor(lengths)
    N = int(length.sum())
    of_response = torch.tensor([1.0, -1, 0.5, 0])[torch.arange(len(length)) % 4]
    logprob = -torch.rand(N, generator=g)
    batch = {
        "logprob": logprob,
        "entropy": torch.rand(N, generator=g),
        "token": torch.randint(6, (N,), generator=g),
        "length": length,
        "kept": Rows(torch.randn(N, 4, generator=g), torch.arange(N), N),
        "advantage": of_response.repeat_interleave(length),
        "current": logprob,
        "generator": torch.Generator().manual_seed(seed),
        "mean_p": torch.rand(N, generator=g),
    }
    return TokenBatch(**(batch | changes))


def token_rows(hidden, token, logprob=None, entropy=None, mean_p=None):
    """The arguments of a method's `keep`."""
    return SimpleNamespace(
        hidden=hidden, token=token, logprob=logprob, entropy=entropy, mean_p=mean_p
    )


def slow_zero_mean_proxy(h, W, temperature, name, y) -> list[float]:
    """A zero-mean proxy of one state h [H] and its token y, in Python floats.

    centred: (Σ p² - p_y) h. surprise: (log p_y - Σ p log p) h.
    """
    h, W = h.double().tolist(), W.double().tolist()
    logits = [sum(a * b for a, b in zip(row, h, strict=True)) / temperature for row in W]
    total = sum(math.exp(z) for z in logits)
    p = [math.exp(z) / total for z in logits]
    if name == "centred":
        s = sum(q * q for q in p) - p[y]
    else:
        s = math.log(p[y]) - sum(q * math.log(q) for q in p)
    return [s * x for x in h]


def slow_varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa):
    """Replaces torch's varlen_attn, which needs a GPU. Computes scores sequence by sequence."""
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert window_size[1] == 0  # causal
    assert enable_gqa == (q.shape[1] != k.shape[1])
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))

    parts = []
    for start, end in zip(cu_q[:-1].tolist(), cu_q[1:].tolist(), strict=True):
        assert end - start <= max_q == max_k
        scores = torch.einsum("ihd,jhd->hij", q[start:end], k[start:end]) * scale
        back = torch.arange(end - start)[:, None] - torch.arange(end - start)  # i - j
        hidden = back < 0
        if window_size[0] >= 0:
            hidden |= back > window_size[0]
        share = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        parts.append(torch.einsum("hij,jhd->ihd", share, v[start:end]))
    assert end == len(q)
    return torch.cat(parts)


def squared_distance(x, y):
    return sum((a - b) ** 2 for a, b in zip(x, y, strict=True))


class SlowDelta:
    """Sec. 3.2 and Apps. F-H token by token, with explicit squared distances, in Python floats."""

    def __init__(self, v, advantage, variant="full", half=None, fresh=False, by_side=False):
        self.v = v.double().tolist()
        self.A = advantage.double().tolist()
        self.variant = variant
        self.half = half  # [N] 0 or 1: each half is scored with the other half's centroids
        self.fresh = fresh  # γ from the current margins, without lag
        self.by_side = by_side  # mean 1 on each side
        self.plus = [i for i, a in enumerate(self.A) if a > 0]
        self.minus = [i for i, a in enumerate(self.A) if a < 0]

    def centroid(self, side, alpha):
        total = sum(abs(self.A[i]) * alpha[i] for i in side)
        if total == 0:
            return [0.0] * len(self.v[0])
        return [
            sum(abs(self.A[i]) * alpha[i] * self.v[i][j] for i in side) / total
            for j in range(len(self.v[0]))
        ]

    def margins(self, alpha):
        out = [0.0] * len(self.v)
        for side, opposite in [(self.plus, self.minus), (self.minus, self.plus)]:
            for i in side:
                own, other = self.judges(i, side), self.judges(i, opposite)
                out[i] = -squared_distance(self.v[i], self.centroid(own, alpha))
                if self.variant != "within_side":
                    out[i] += squared_distance(self.v[i], self.centroid(other, alpha))
        return out

    def judges(self, i, side):
        """The tokens of `side` that form the centroid scoring token i."""
        if self.half is None:
            return side
        return [j for j in side if self.half[j] != self.half[i]]

    def temperatures(self, delta):
        out = []
        for side in (self.plus, self.minus):
            mean = sum(delta[i] for i in side) / len(side)
            variance = sum((delta[i] - mean) ** 2 for i in side) / len(side)
            out.append(math.sqrt(max(variance, 1e-12)))
        return out

    def scores(self, delta, gamma):
        if self.variant == "hard":
            return [float(d > 0) for d in delta]
        if self.fresh:
            gamma = self.temperatures(delta)
        own = [gamma[0] if a > 0 else gamma[1] for a in self.A]
        return [1 / (1 + math.exp(-d / g)) for d, g in zip(delta, own, strict=True)]

    def coefficients(self, K, lam_min, lam_max):
        delta = self.margins([1.0] * len(self.v))
        gamma = self.temperatures(delta)
        for _ in range(K):
            alpha = self.scores(delta, gamma)
            next_gamma = self.temperatures(delta)
            delta = self.margins(alpha)
            gamma = next_gamma
        alpha = self.scores(delta, gamma)

        if self.variant == "no_range_map":
            lam = [x if a else 0.0 for x, a in zip(alpha, self.A, strict=True)]
        else:
            mapped = [lam_min + (lam_max - lam_min) * x for x in alpha]
            lam = [x if a else lam_min for x, a in zip(mapped, self.A, strict=True)]
        if self.variant == "no_norm":
            return torch.tensor(lam, dtype=torch.float64)
        if self.by_side:
            out = [1.0] * len(lam)
            for side in (self.plus, self.minus):
                mean = sum(lam[i] for i in side) / len(side)
                for i in side:
                    out[i] = lam[i] / mean
            return torch.tensor(out, dtype=torch.float64)
        return torch.tensor([x * len(lam) / sum(lam) for x in lam], dtype=torch.float64)
