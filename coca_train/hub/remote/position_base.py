"""What most position schemes leave as it is, and what several share."""

import math

import torch
from torch import nn


class Base(nn.Module):
    """One per model."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.settings = config.coca_train["position"]
        self.model = config.coca_train["model"]
        self.head_dim = self.model["head_dim"] or self.model["d_model"] // self.model["n_heads"]

    @staticmethod
    def key_dim(config, head_dim):
        return head_dim

    def embed(self, x, pos_BT):
        return x

    def forward(self, pos_BT, length):
        return None


class LayerBase(nn.Module):
    """One per layer: queries, keys and what is added to the scores (B, H, T, T) or None."""

    rewrites = False  # whether `scores` does anything

    def __init__(self, config):
        super().__init__()
        self.settings = config.coca_train["position"]
        model = config.coca_train["model"]
        self.model, self.n_heads = model, model["n_heads"]
        self.n_kv_heads = model["n_kv_heads"] or model["n_heads"]
        self.head_dim = model["head_dim"] or model["d_model"] // model["n_heads"]

    def forward(self, attention, q, k, tables):
        return q, k, None

    def scores(self, scores, shown, x, q_BTHD, tables):
        """Float32 scores (B, H, T, T) as others; shown: the pairs that are seen; x: the layer's input."""
        return scores

    def values_of(self, weights, tables):
        return torch.zeros((), dtype=weights.dtype, device=weights.device)


def distances(pos_BT):
    """max(m - n, 0), int64 (B, T, T)."""
    return (pos_BT[:, :, None] - pos_BT[:, None, :]).clamp(min=0)


def alibi_slopes(n_heads, device):
    """2^(-8h/H), for other head counts with those of the next power of two between (arXiv 2108.12409), (H, 1, 1)."""
    below = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    slopes += [2 ** (-8 * h / (2 * below)) for h in range(1, 2 * below + 1, 2)][: n_heads - below]
    return torch.tensor(slopes, dtype=torch.float32, device=device)[:, None, None]


class Interpolated(nn.Module):
    """FIRE's function of log distances as shares of the way to the first token (arXiv 2310.04418), (B, H, T, T)."""

    def __init__(self, n_heads, mlp_width, threshold):
        super().__init__()
        self.threshold = threshold
        self.c, self.a = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))
        self.w1, self.b1 = nn.Parameter(torch.empty(mlp_width)), nn.Parameter(torch.empty(mlp_width))
        self.w2 = nn.Parameter(torch.empty(n_heads, mlp_width))

    def forward(self, pos_BT):
        c, a, w1, b1, w2 = (p.float() for p in (self.c, self.a, self.w1, self.b1, self.w2))
        far_BT1 = torch.maximum(pos_BT.float(), (a * self.threshold).abs())[..., None]
        share = (c * distances(pos_BT)).abs().log1p() / ((c * far_BT1).abs().log1p() + 1e-6)
        return (torch.relu(share[..., None] * w1 + b1) @ w2.T).permute(0, 3, 1, 2)


def looked_up(products_BHTR, r_BTT):
    """products[b, h, t, r[b, t, s]], (B, H, T, T)."""
    index = r_BTT[:, None].expand(products_BHTR.shape[0], products_BHTR.shape[1], -1, -1)
    return products_BHTR.gather(-1, index)


def buckets(n_buckets, max_distance):
    """T5's causal bucket of every distance 0 ... max_distance (arXiv 1910.10683), decided in integers."""
    exact, steps, rows, bucket = n_buckets // 2, n_buckets - n_buckets // 2, [], 0
    for r in range(max_distance + 1):
        while bucket + 1 < n_buckets and (
            r >= bucket + 1
            if bucket + 1 <= exact
            else r**steps >= max_distance ** (bucket + 1 - exact) * exact ** (steps - (bucket + 1 - exact))
        ):
            bucket += 1
        rows.append(bucket)
    return torch.tensor(rows)


def waves(pos, theta, width):
    """(sin, cos) of pos * theta^(-2j/width), float32 (..., width)."""
    w = (theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)).float().to(pos.device)
    angle = pos.float()[..., None] * w
    return torch.cat((angle.sin(), angle.cos()), -1)
