"""What most position schemes leave as it is, and what several share."""

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

    def __init__(self, config):
        super().__init__()
        self.settings = config.coca_train["position"]
        model = config.coca_train["model"]
        self.model, self.n_heads = model, model["n_heads"]
        self.n_kv_heads = model["n_kv_heads"] or model["n_heads"]
        self.head_dim = model["head_dim"] or model["d_model"] // model["n_heads"]

    def forward(self, attention, q, k, tables):
        return q, k, None

    def values_of(self, weights, tables):
        return torch.zeros((), dtype=weights.dtype, device=weights.device)


def distances(pos_BT):
    """max(m - n, 0), int64 (B, T, T)."""
    return (pos_BT[:, :, None] - pos_BT[:, None, :]).clamp(min=0)


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
