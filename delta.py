"""DelTA's token coefficients: how much each response token belongs to its own side of the update.

Sec. 3.2 and Apps. F-H of the paper. From two advantage-weighted centroids of a token-gradient proxy, each token gets a margin (nearer
to its own side's centroid or the other's), a sigmoid score, and so a weight around 1 in the DAPO loss.

Departures: (1) margins are measured in units of max|v|², so that no finite input overflows (temperatures scale along); (2) statistics
are those of the whole rollout batch, as in the text, not of a rank's shard: `over_ranks` stands around every sum over rows.
Shapes: N packed response tokens, H hidden.
Symbols: v proxy, μ centroid, Δ margin, γ temperature, α score, λ coefficient, λ̄ = λ N / Z normalised coefficient.
"""
import torch
from torch.distributed import ReduceOp

from grpo import TokenBatch, method, over_ranks, row_blocks, selected, side_centroids

EPS_GAMMA = 1e-12  # floor of a margin variance, in units of max|v|⁴: below it float32 margins are rounding noise
VARIANTS = ("full", "within_side", "hard", "no_norm", "no_range_map")  # Tables 2 and 3; `delta` below adds fixed_gamma and random


def token_gradient_proxy(hidden: torch.Tensor, logprob: torch.Tensor) -> torch.Tensor:
    """v = (1 - p) h, the sampled token's row of the LM-head gradient (App. F). hidden [N, H], logprob [N] -> [N, H]."""
    return -torch.expm1(logprob)[:, None].to(hidden.dtype) * hidden  # -expm1(log p) = 1 - p, exact also for p near 1


class RowProxy:
    """token_gradient_proxy of all rows, computed for each block as it is read: hidden [N, H] stays where it lies, uncopied."""

    def __init__(self, hidden, logprob): self.hidden, self.logprob, self.shape, self.dtype = hidden, logprob, hidden.shape, torch.float32
    def __len__(self): return len(self.hidden)
    def __getitem__(self, rows): return token_gradient_proxy(self.hidden[rows].to(self.logprob.device).float(), self.logprob[rows])


def hidden_gradient_proxy(hidden, token, head, k: int) -> torch.Tensor:
    """v = W_y - Σ_j p̃_j W_j over the k likeliest tokens j, p̃ renormalised among them (App. F's top-K proxy): [N, H], in blocks."""
    v = torch.empty_like(hidden)
    for rows, h in row_blocks(hidden, head.device, 2**24 * hidden.shape[1] // max(len(head), k * hidden.shape[1])):
        logits, likeliest = (h @ head.to(h.dtype).T).topk(min(k, len(head)), dim=1)
        v[rows] = head[token[rows]] - (logits.softmax(1)[:, :, None] * head[likeliest]).sum(1)
    return v


def lm_head_gradient(hidden, token, head) -> torch.Tensor:
    """The exact LM-head gradient (e_y - p) ⊗ h, flattened to [N, V H]; stored whole: raises ValueError where V H > 2^16."""
    if head.numel() > 2**16: raise ValueError(f"the LM-head gradient has {head.numel()} entries a token, more than 65536")
    residual = torch.nn.functional.one_hot(token, len(head)) - (hidden.float() @ head.float().T).softmax(1)  # e_y - p
    return (residual[:, :, None] * hidden[:, None, :]).flatten(1)


def margins(v, advantage, mu_pos, mu_neg, scale, variant="full") -> torch.Tensor:
    """Δ of every token [N], in units of scale²: ‖v-μ_other‖² - ‖v-μ_own‖² by App. G's linear form; 0 where A = 0.

    The within-side variant has no opposite side: -‖v-μ_own‖² (Table 2)."""
    mu_pos, mu_neg = mu_pos.double() / scale, mu_neg.double() / scale
    direction, offset = 2 * (mu_pos - mu_neg) / scale, mu_neg.square().sum() - mu_pos.square().sum()
    score = torch.empty(len(v), dtype=torch.promote_types(v.dtype, torch.float32), device=advantage.device)
    for rows, block in row_blocks(v, advantage.device):
        if variant == "within_side":
            own = torch.where(advantage[rows, None] > 0, mu_pos.to(block.dtype), mu_neg.to(block.dtype))
            score[rows] = -(block / scale - own).square().sum(dim=1)
        else:
            score[rows] = block @ direction.to(block.dtype) + offset.to(block.dtype)  # App. G: linear in v
    return score * (advantage != 0) if variant == "within_side" else score * advantage.sign()


def temperatures(delta: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """γ [N], each token's side's: the square root of the variance of Δ over that side's tokens (App. H)."""
    gamma = torch.ones_like(delta)
    for side in (advantage > 0, advantage < 0):
        x = delta[side].double()
        n, total = over_ranks(torch.stack([side.double().sum(), x.sum()]))
        gamma[side] = (over_ranks((x - total / n).square().sum()) / n).clamp_min(EPS_GAMMA).sqrt().to(delta.dtype)
    return gamma


def scores(delta: torch.Tensor, gamma: torch.Tensor, variant="full") -> torch.Tensor:
    """α = argmax α Δ + γ h(α) = σ(Δ/γ) (Eqs. 5-6), or its limit γ -> 0, the hard choice 1[Δ > 0]. [N] -> [N]."""
    return (delta > 0).to(delta.dtype) if variant == "hard" else torch.sigmoid(delta / gamma)  # Eq. 6


@torch.no_grad()
def delta_coefficients(v: torch.Tensor, advantage: torch.Tensor, K: int = 1, lam_min: float = 0.8, lam_max: float = 1.2,
                       variant: str = "full", fixed_gamma: list | None = None) -> torch.Tensor:
    """The normalised coefficients λ̄ [N] of mean 1, no gradient, float32 or better (Sec. 3.2).

    v [N, H] token-gradient proxy, advantage [N] (A_i on each of its tokens), K refinements of the centroids, variant one
    of VARIANTS: `full`; `within_side` α = σ(-‖v-μ_own‖²/γ); `hard` α = 1[Δ>0]; `no_norm` λ itself; `no_range_map` α
    itself, normalised (Tables 2 and 3). fixed_gamma: a list that an earlier call has filled, if empty filled with
    (γ₊, γ₋) of Δ⁽⁰⁾, and used in place of every temperature (Table 3). All ones where either side is empty. Reads v in blocks, 2K + 3 times.
    Raises ValueError on shapes that do not fit, a NaN or inf in v or advantage, K < 0, lam_min > lam_max, an unknown variant.
    """
    for wrong, message in [
        (len(v.shape) != 2 or advantage.shape != (len(v),), f"v must be [N, H] and advantage [N], got {tuple(v.shape)} and {tuple(advantage.shape)}"),
        (not torch.isfinite(advantage).all(), "advantage holds a NaN or inf"),
        (K < 0 or K != int(K), f"K is {K}: the number of refinements is a whole number from 0 up"),
        (not 0 <= lam_min <= lam_max < torch.inf, f"lam_min = {lam_min} and lam_max = {lam_max}: need 0 <= lam_min <= lam_max"),
        (variant not in VARIANTS, f"variant is {variant!r}: choose one of {', '.join(VARIANTS)}"),
    ]:
        if wrong: raise ValueError(message)
    ones = torch.ones(len(v), dtype=torch.promote_types(v.dtype, torch.float32), device=advantage.device)
    scale = torch.stack([ones.new_tensor(1e-30), *(block.abs().max() for _, block in row_blocks(v, advantage.device) if block.numel())]).max()
    scale = float(over_ranks(scale.nan_to_num(torch.inf, torch.inf), ReduceOp.MAX))
    if not scale < torch.inf: raise ValueError("v holds a NaN or inf: the hidden states or log-probabilities it was made from are broken")
    mu_pos, mu_neg, mass_pos, mass_neg = side_centroids(v, advantage)  # μ⁽⁰⁾ (Eq. 3)
    if mass_pos == 0 or mass_neg == 0: return ones
    delta = margins(v, advantage, mu_pos, mu_neg, scale, variant)  # Δ⁽⁰⁾
    gamma = temperatures(delta, advantage)  # γ⁽⁰⁾ (App. H)
    if fixed_gamma is not None:
        at_first = [torch.cat([gamma.new_zeros(1), gamma[side]]).max() for side in (advantage > 0, advantage < 0)]
        fixed_gamma += [] if fixed_gamma else [float(over_ranks(x, ReduceOp.MAX)) * scale**2 for x in at_first]
        gamma = torch.where(advantage > 0, fixed_gamma[0] / scale**2, fixed_gamma[1] / scale**2).to(delta)
    for _ in range(K):
        alpha = scores(delta, gamma, variant)  # α⁽ᵏ⁾ (Eq. 6)
        if fixed_gamma is None:
            gamma = temperatures(delta, advantage)  # γ⁽ᵏ⁺¹⁾ is lagged: measured on Δ⁽ᵏ⁾ (App. H)
        mu_pos, mu_neg, _, _ = side_centroids(v, advantage, alpha)  # μ⁽ᵏ⁺¹⁾ (Eq. 7)
        delta = margins(v, advantage, mu_pos, mu_neg, scale, variant)  # Δ⁽ᵏ⁺¹⁾
    alpha = scores(delta, gamma, variant)  # α* from μ⁽ᴷ⁾ and γ⁽ᴷ⁾
    lam = alpha if variant == "no_range_map" else lam_min + (lam_max - lam_min) * alpha  # λ (Sec. 3.2)
    lam = torch.where(advantage == 0, 0.0 if variant == "no_range_map" else lam_min, lam)
    if variant == "no_norm": return lam
    Z, N = over_ranks(torch.stack([lam.double().sum(), ones.double().sum()]))
    return (lam.double() * N / Z).to(lam.dtype) if Z > 0 else ones  # λ̄ = λ N / Z (Eq. 8)


@method
def delta(tokens: TokenBatch, *, K=1, lam_min=0.8, lam_max=1.2, delta_variant="full", proxy="lm_head", proxy_topk=20, select="none",
          select_share=0.5, generator=None, memory=None, **_) -> torch.Tensor:
    """ρ = λ̄: the discriminative coefficients, from states that the scoring pass already computed.

    delta_variant also takes `random` (λ uniform in its range, App. F's control) and `fixed_gamma`, whose temperatures are those of
    the run's first batch, kept in `memory`: frozen inside a batch they would change nothing, as with K = 1 the lagged γ⁽¹⁾ is γ⁽⁰⁾.
    select: plain DAPO on a share of the tokens with an advantage: those of highest, lowest or random λ (Sec. 5.2).
    """
    if delta_variant == "random":
        lam = lam_min + (lam_max - lam_min) * torch.rand(len(tokens.logprob), generator=generator).to(tokens.logprob)
        lam = lam / lam.mean()
    else:
        hidden, token = tokens.hidden, tokens.token[tokens.mine]
        v = {"lm_head": lambda: RowProxy(hidden, tokens.logprob[tokens.mine]),
             "topk": lambda: hidden_gradient_proxy(hidden, token, tokens.head(), proxy_topk),
             "exact": lambda: lm_head_gradient(hidden, token, tokens.head())}[proxy]()
        fixed = memory.setdefault("gamma", []) if delta_variant == "fixed_gamma" else None
        mine = delta_coefficients(v, tokens.advantage[tokens.mine], K, lam_min, lam_max, "full" if fixed is not None else delta_variant, fixed)
        lam = over_ranks(torch.zeros_like(tokens.logprob).index_copy(0, tokens.mine, mine))  # every rank gets all N
    if select == "none": return lam
    score, sides = {"top": lam, "bottom": -lam, "random": torch.rand(len(lam), generator=generator).to(lam)}[select], tokens.advantage != 0
    return torch.ones_like(lam).masked_scatter(sides, selected(score[sides], select_share))
