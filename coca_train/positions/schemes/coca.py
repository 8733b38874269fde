"""Collinear constrained attention (CoCA, ACL 2024, arXiv 2309.08646) as a plain dot product.

A key is t = ReLU(W_T x), one value per pair. With R_m the rotation by m·θ_j:

slack  (Eq. 11 without Eq. 12; the released models): q' = q ∘ R_m q, k' = R_n (t, t).
strict (Eq. 10, 18): q' = (|q_j|² cos mθ_j, |q_j|² sin mθ_j), k' = (t_j cos nθ_j, t_j sin nθ_j),
       so the score is Σ_j t_j |q_j|² cos((m-n)θ_j).

W_T is as wide as RoPE's W_K and its halves are averaged, as the authors train it (`full_mean`), so that a model has the
parameters of one with RoPE and begins with the same; or it has a row per pair (`half`): the same functions with half
the numbers. Both begin as one function, W_T of `half` as the mean of the halves: its std is 1/√2 of the others'.

Where only part of a head turns (`rotary_pct` < 1; GPT-NeoX, GLM), the paper says nothing. Here that part is CoCA, whose
constraint is between the two features of a pair that turns, and the rest is the plain product q·k that it was.

Any fused kernel, O(T·D) memory where the paper's contraction took O(T²·D). A cache for one length holds k', as
large as RoPE's; where the length may change it holds W_T x un-rotated, at half width for both: 25 % smaller where
the whole head turns. Strict is relative. Slack is not: its score also depends on (m+n)θ_j, so positions start at 0 at
each document and at each evaluation window.
"""

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.config.schema import STRICT, ModelConfig, SchemeSettings
from coca_train.positions import rope_scaling, rotary
from coca_train.positions.base import AttentionShape, LayerPosition, Problem
from coca_train.positions.token_positions import Positions
from coca_train.runtime import autograd


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Collinear constrained attention."""

    scheme: Literal["coca"]
    variant: Literal["slack", "strict"] = Field(
        description="slack: the released models (Eq. 11 without Eq. 12); strict: exactly relative (Eq. 18)"
    )
    t_width: Literal["half", "full_mean"] = Field(
        description="full_mean: W_T has a row per feature, as W_K, and its halves are averaged (the authors' models); "
        "half: a row per pair, the same functions with half the numbers"
    )
    rotary_pct: float = Field(
        gt=0, le=1, description="rotated share of each head, which is CoCA; the rest is a plain product (GPT-NeoX 0.25)"
    )
    temperature_on: Literal["head", "rotated"] = Field(
        default="head",
        description="what the temperature of the frequencies multiplies where a part of the head is rotated: head, all "
        "of it; rotated, that part alone (transformers)",
    )
    rope_scaling: Annotated[
        rope_scaling.AnyRopeScaling, Field(description="frequencies and how they scale with length")
    ]

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse combinations that cannot be computed."""
        return rotary.problems(model, self.rotary_pct, self.rope_scaling)


def fold_full_mean(w_t: Tensor, n_kv_heads: int, rotary_pct: float = 1.0) -> Tensor:
    """Fold full-width T weights (G·D, C), or biases (G·D), into the half-width ones of the same function; rows of
    features that do not turn stay as they are."""
    by_head = w_t.unflatten(0, (n_kv_heads, -1))
    turning = rotary.width(by_head.shape[1], rotary_pct)
    t = by_head[:, :turning].unflatten(1, (2, -1)).mean(1)
    return torch.cat((t, by_head[:, turning:]), 1).flatten(0, 1)


def _narrow(w_k: Tensor, n_kv_heads: int, settings: SchemeSettings) -> Tensor:
    """Narrow weights with a row per feature to those with a row per pair."""
    assert isinstance(settings, Settings)
    return fold_full_mean(w_k, n_kv_heads, settings.rotary_pct)


class Tables(NamedTuple):
    """The rotation of the query, and the factor of t that gives the two halves of k'."""

    query: rotary.CosSin
    key_BS1R: Tensor


class Layer(LayerPosition):
    """A layer that averages the halves of a projection of full width."""

    settings: Settings

    def reduce_keys(self, k_BSGP: Tensor) -> Tensor:
        """Return W_T x at half width; means are float32 or wider, so that training rounds k' alone."""
        # The result is averaged and not W_T, which would spare half of a small product: an adapter (LoRA) and a norm of
        # the heads (qk_norm) come between them, and runs that began so continue bit for bit.
        if self.settings.t_width == "half":
            return k_BSGP
        if self.settings.rotary_pct == 1:
            return _mean_of_halves(k_BSGP)
        turning = rotary.width(self.shape.head_dim, self.settings.rotary_pct)
        t_BSGJ = _mean_of_halves(k_BSGP[..., :turning])
        return torch.cat((t_BSGJ, k_BSGP[..., turning:].to(t_BSGJ)), -1)


class Scheme(rotary.Rotary):
    """Queries that carry their own square, keys that carry one non-negative value per pair."""

    settings: Settings

    bidirectional = True
    layer_class = Layer
    narrow_key = staticmethod(_narrow)

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.relative = settings.variant == "strict"
        self._query = (_StrictQuery, _strict) if settings.variant == "strict" else (_SlackQuery, _slack)

    @property
    def key_dim(self) -> int:
        """K = D - R/2: a value per pair, and the features that do not turn."""
        return self.shape.head_dim - self.rotary_dim // 2

    @property
    def projected_key_dim(self) -> int:
        """P = K, or D where the layers average the halves."""
        return self.key_dim if self.settings.t_width == "half" else self.shape.head_dim

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tables:
        """Return the tables at a sequence length [tokens], which dynamic frequencies adapt to."""
        spectrum = self.spectrum(length, queries.pos_BT.device)
        query, key = rotary.query_and_key_tables(queries, keys, spectrum)
        if self.settings.temperature_on == "rotated":
            query = query._replace(temperature=1.0)
        cos_BS1J, sin_BS1J = key.cos_BT1R.chunk(2, -1)[0], key.sin_BT1R.chunk(2, -1)[1]
        if self.settings.variant == "strict":
            return Tables(query, torch.cat((cos_BS1J, sin_BS1J), -1))
        return Tables(query, torch.cat((cos_BS1J - sin_BS1J, cos_BS1J + sin_BS1J), -1))

    def rotate(self, q_BTHD: Tensor, k_BSGK: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """Form both results in float32 or wider and cast them once. E = D."""
        function, compute = self._query
        width, dtype = self.rotary_dim, q_BTHD.dtype
        partial = width < q_BTHD.shape[-1]
        inputs = q_BTHD[..., :width] if partial else q_BTHD, tables.query.cos_BT1R, tables.query.sin_BT1R
        # Of a single token, an autograd function takes as long to call as what it computes.
        graded = torch.is_grad_enabled()
        query = autograd.apply(function, *inputs) if graded else rotary.compute_in_pieces(compute, *inputs)
        t_BSGJ = (k_BSGK[..., : width // 2] if partial else k_BSGK).relu()
        key = (torch.cat((t_BSGJ, t_BSGJ), -1) * tables.key_BS1R).to(dtype)
        if not partial:
            return query, key
        temperature = tables.query.temperature
        q_rest, k_rest = q_BTHD[..., width:], k_BSGK[..., width // 2 :].to(dtype)
        return torch.cat((query, q_rest * temperature), -1), torch.cat((key, k_rest * temperature), -1)


class _SlackQuery(torch.autograd.Function):
    """q ∘ R q. Keeps q alone for the backward pass, and works through time in pieces: no float32 copy of the whole."""

    @staticmethod
    def forward(ctx: autograd.Context, q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(q, cos, sin)
        return rotary.compute_in_pieces(_slack, q, cos, sin)

    @staticmethod
    def backward(ctx: autograd.Context, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Compute g ∘ R q + Rᵀ(g ∘ q) as 2 g∘q∘cos + sin∘swap(q)∘(g - swap(g)), with fewer passes over memory."""
        q, cos, sin = ctx.saved_tensors
        out, d_cos, d_sin = torch.empty_like(q), *_table_gradients(ctx, cos, sin)
        for part in rotary.time_slices(q):
            g = grads[0][:, part].to(torch.promote_types(q.dtype, torch.float32))
            g_a, g_b = g.chunk(2, -1)
            swapped = q[:, part].roll(q.shape[-1] // 2, -1)
            turned = (g_b - g_a) * sin[:, part].chunk(2, -1)[1]
            dq = torch.cat((turned, turned), -1).mul_(swapped)
            out[:, part] = dq.addcmul_(g * cos[:, part], q[:, part], value=2)
            if d_cos is not None and d_sin is not None:
                g_q = g * q[:, part]
                d_cos[:, part] = (g_q * q[:, part]).sum_to_size(d_cos[:, part].shape)
                d_sin[:, part] = (g_q * swapped).sum_to_size(d_sin[:, part].shape)
        return out, d_cos, d_sin


class _StrictQuery(torch.autograd.Function):
    """(|q_j|² cos, |q_j|² sin). Keeps q alone for the backward pass; in pieces, as above."""

    @staticmethod
    def forward(ctx: autograd.Context, q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(q, cos, sin)
        return rotary.compute_in_pieces(_strict, q, cos, sin)

    @staticmethod
    def backward(ctx: autograd.Context, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        q, cos, sin = ctx.saved_tensors
        out, d_cos, d_sin = torch.empty_like(q), *_table_gradients(ctx, cos, sin)
        for part in rotary.time_slices(q):
            g_cos, g_sin = grads[0][:, part].chunk(2, -1)
            g_norm = torch.addcmul(g_cos * cos[:, part].chunk(2, -1)[0], g_sin, sin[:, part].chunk(2, -1)[1]).mul_(2)
            out[:, part] = q[:, part] * torch.cat((g_norm, g_norm), -1)
            if d_cos is not None and d_sin is not None:
                norm = _square_norm(q[:, part])
                for_cos, for_sin = d_cos[:, part].chunk(2, -1)[0], d_sin[:, part].chunk(2, -1)[1]
                for_cos.copy_((g_cos * norm).sum_to_size(for_cos.shape))
                for_sin.copy_((g_sin * norm).sum_to_size(for_sin.shape))
        return out, d_cos, d_sin


def _table_gradients(ctx: autograd.Context, cos: Tensor, sin: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return zeros to fill in for (cos, sin) where the frequencies are learned; else none."""
    if any(ctx.needs_input_grad[1:]):
        return torch.zeros_like(cos), torch.zeros_like(sin)
    return None, None


def _slack(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotary.rotate(q, cos, sin).mul_(q)


def _strict(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    norm = _square_norm(q)
    return torch.cat((norm * cos.chunk(2, -1)[0], norm * sin.chunk(2, -1)[1]), -1)


def _square_norm(q: Tensor) -> Tensor:
    """Return |q_j|² of every pair; float32 or wider."""
    a, b = q.to(torch.promote_types(q.dtype, torch.float32)).chunk(2, -1)
    return torch.addcmul(a * a, b, b)


def _mean_of_halves(t: Tensor) -> Tensor:
    """Return (t_j + t_{j+D/2}) / 2 as the released code does before its ReLU; float32 or wider."""
    a, b = (t if t.dtype.itemsize >= 4 else t.float()).chunk(2, -1)
    return (a + b).mul_(0.5)
