"""Reference computations for several tests: small batches, and DelTA one token at a time."""

import math
from dataclasses import replace

import torch

from config import parse_config, selected_method
from methods import TokenBatch, TokenOutputs


def two_sides(N=61, H=5, seed=0, dtype=torch.float32):
    """(v [N, H], advantage [N]). Advantages: three positive values, two negative ones, and 0."""
    g = torch.Generator().manual_seed(seed)
    values = torch.tensor([1.7, -0.4, 0.0, 0.3, -2.1, 0.9])
    advantage = values[torch.randint(6, (N,), generator=g)]
    v = torch.randn(N, H, generator=g) * torch.rand(N, 1, generator=g) * 3 + 1.0
    v[advantage > 0, 0] += 0.7
    v[advantage < 0, 1] -= 0.4
    return v.to(dtype), advantage


def token_batch(lengths, seed=0, of_response=(1.0, -1.0, 0.5, 0.0), **changes) -> TokenBatch:
    """A random TokenBatch; the advantages `of_response` repeat if there are more responses."""
    g = torch.Generator().manual_seed(seed)
    length = torch.tensor(lengths)
    N = int(length.sum())
    of_response = torch.tensor(of_response)[torch.arange(len(length)) % len(of_response)]
    logprob = -torch.rand(N, generator=g)
    batch = {
        "old_logprob": logprob,
        "entropy": torch.rand(N, generator=g),
        "token": torch.randint(6, (N,), generator=g),
        "length": length,
        "reward": (torch.arange(len(length)) % 2).float(),
        "advantage": of_response.repeat_interleave(length),
        "sampler_logprob": logprob,
    }
    return TokenBatch(**(batch | changes))


def token_rows(tokens: TokenBatch, seed=0) -> torch.Tensor:
    """Random v [N, 4] for the tokens of a batch."""
    return torch.randn(len(tokens), 4, generator=torch.Generator().manual_seed(seed))


def token_outputs(hidden, token, logprob=None, entropy=None):
    """The outputs of a pass, from which a method's features are computed."""
    return TokenOutputs(hidden, token, logprob, entropy)


def method_weights(tokens: TokenBatch, *flags, v=None) -> torch.Tensor:
    """ρ of the method that the flags select, for groups of 4. v: by default, token_rows."""
    cfg = parse_config(["--group-size", "4", *map(str, flags)])
    v = token_rows(tokens) if v is None else v
    return selected_method(cfg).weights(replace(tokens, seed=cfg.seed), v, cfg)


class SlowDelta:
    """Sec. 3.2 and Apps. F-H token by token, with explicit squared distances, in float64."""

    def __init__(self, v, advantage, variant="full"):
        self.v = v.double()
        self.A = advantage.double().tolist()
        self.variant = variant
        self.plus = [i for i, a in enumerate(self.A) if a > 0]
        self.minus = [i for i, a in enumerate(self.A) if a < 0]

    def centroid(self, side, alpha):
        total = sum(abs(self.A[i]) * alpha[i] for i in side)
        if total == 0:
            return torch.zeros_like(self.v[0])
        return sum(abs(self.A[i]) * alpha[i] * self.v[i] for i in side) / total

    def margins(self, alpha):
        out = [0.0] * len(self.v)
        for side, opposite in [(self.plus, self.minus), (self.minus, self.plus)]:
            for i in side:
                out[i] = -float((self.v[i] - self.centroid(side, alpha)).square().sum())
                if self.variant != "within_side":
                    other = self.centroid(opposite, alpha)
                    out[i] += float((self.v[i] - other).square().sum())
        return out

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
        return torch.tensor([x * len(lam) / sum(lam) for x in lam], dtype=torch.float64)
