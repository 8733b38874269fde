"""Rotation of feature pairs by an angle that grows with the position (RoFormer, arXiv 2104.09864, Eq. 34).

Dimension j is paired with j + R/2 ("half split"), R = width of the rotated part. Angles, cos and sin
are float32 and start from integer positions: in bfloat16, 32 768 positions are about 1 150 distinct ones.

Shape legend: B batch, T tokens, H heads, D head width, R rotated width, J = R/2 pairs.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from coca_train.config.schema import ModelConfig, SchemeSettings
from coca_train.positions.base import AttentionShape, Position, Problem
from coca_train.positions.rope_scaling import RopeScaling, Spectrum
from coca_train.positions.token_positions import DeviceCopies, Positions

PIECE = 2**17  # elements of float32 work alive at once: half a MiB, which stays in the cache


class CosSin(NamedTuple):
    """A rotation for every position, float32, already multiplied by the temperature.

    Both halves of the width are spelled out, so that R x = x * cos + swap(x) * sin in two passes,
    swap (a, b) -> (b, a).
    """

    cos_BT1R: Tensor  # (cos, cos)
    sin_BT1R: Tensor  # (-sin, sin)
    temperature: float  # multiplied into the features that are not rotated


def moved_positions(pos_BT: Tensor, spectrum: Spectrum) -> Tensor:
    """Return the position of each token, float32 (B, T): its integer position, or where the spectrum moves it."""
    assert not pos_BT.is_floating_point(), "positions must be integers: half precision merges them"
    if spectrum.positions_N is None:
        return pos_BT.to(torch.float32)
    return spectrum.positions_N[pos_BT]


def angles(pos_BT: Tensor, spectrum: Spectrum) -> Tensor:
    """Return positions times inverse frequencies [radians], float32 (B, T, J); within one turn where periods are
    known."""
    if spectrum.period_J is not None:
        return (pos_BT[..., None] % spectrum.period_J).to(torch.float32) * spectrum.inv_freq_J
    return moved_positions(pos_BT, spectrum)[..., None] * spectrum.inv_freq_J


def cos_sin(pos_BT: Tensor, spectrum: Spectrum) -> CosSin:
    """Return the rotation at each position: one table for all heads and layers."""
    angle_BT1J = angles(pos_BT, spectrum)[:, :, None, :]
    cos_BT1J, sin_BT1J = angle_BT1J.cos() * spectrum.temperature, angle_BT1J.sin() * spectrum.temperature
    return CosSin(torch.cat((cos_BT1J, cos_BT1J), -1), torch.cat((-sin_BT1J, sin_BT1J), -1), spectrum.temperature)


def query_and_key_tables(queries: Positions, keys: Positions, spectrum: Spectrum) -> tuple[CosSin, CosSin]:
    """Return the rotations of queries and keys; computed once when both are the same."""
    query = cos_sin(queries.pos_BT, spectrum)
    return query, query if keys is queries else cos_sin(keys.pos_BT, spectrum)


def compute_in_pieces(function: Callable[..., Tensor], x_BTHR: Tensor, *tables: Tensor) -> Tensor:
    """Compute function(x, *tables) in the dtype of x, piece by piece, so that no wider copy of the whole exists."""
    parts = time_slices(x_BTHR)
    if len(parts) == 1:
        # While a graph is traced, a copy, which Inductor removes again: in the forward of an autograd.Function, Dynamo
        # of torch 2.11 gives no gradient to what an in-place operation returns, or a `to` that changes nothing.
        return function(x_BTHR, *tables).to(x_BTHR.dtype, copy=torch.compiler.is_compiling())
    out = torch.empty_like(x_BTHR)
    for part in parts:
        out[:, part] = function(x_BTHR[:, part], *(table[:, part] for table in tables))
    return out


def time_slices(x_BTHR: Tensor) -> list[slice]:
    """Split the time axis into slices of about PIECE elements each; one slice off the CPU, where launches cost more."""
    n = x_BTHR.shape[1]
    step = n if not x_BTHR.is_cpu else max(1, PIECE * n // max(1, x_BTHR.numel()))
    return [slice(start, start + step) for start in range(0, n, step)]


def rotate(x_BTHR: Tensor, cos_BT1R: Tensor, sin_BT1R: Tensor) -> Tensor:
    """Return R x in float32 or wider (not cast back). Autograd keeps the tables only.

    R is orthogonal up to the temperature: its transpose is `rotate(x, cos, -sin)`.
    """
    return torch.addcmul(x_BTHR * cos_BT1R, x_BTHR.roll(x_BTHR.shape[-1] // 2, -1), sin_BT1R)


def apply(x_BTHD: Tensor, turn: CosSin) -> Tensor:
    """Rotate the first R of the D features, scale the rest by the temperature; same dtype as x."""
    width = turn.cos_BT1R.shape[-1]
    if width == x_BTHD.shape[-1]:
        return rotate(x_BTHD, turn.cos_BT1R, turn.sin_BT1R).to(x_BTHD.dtype)
    turned = rotate(x_BTHD[..., :width], turn.cos_BT1R, turn.sin_BT1R).to(x_BTHD.dtype)
    return torch.cat((turned, x_BTHD[..., width:] * turn.temperature), -1)


class QueryKeyTables(Protocol):
    """Tables of a rotary scheme: the rotations of queries and keys."""

    @property
    def query(self) -> CosSin: ...
    @property
    def key(self) -> CosSin: ...


class ScaledSettings(SchemeSettings, Protocol):
    """What the settings of schemes with frequencies have in common."""

    @property
    def rope_scaling(self) -> RopeScaling: ...


class RotarySettings(ScaledSettings, Protocol):
    """What the settings of rotary schemes have in common."""

    @property
    def rotary_pct(self) -> float: ...


class Frequencies(Position):
    """Base of the schemes with frequencies: `rotary_dim` features in pairs, and how the pairs turn.

    features: how many rotated ones each feature of a head has.
    """

    features: ClassVar[int] = 1

    def __init__(self, settings: ScaledSettings, shape: AttentionShape, rotary_dim: int) -> None:
        super().__init__(settings, shape)
        self.rotary_dim = rotary_dim
        self.rope_scaling = settings.rope_scaling.build(rotary_dim)
        self._inv_freq, self._moved, self._periods = DeviceCopies(), DeviceCopies(), DeviceCopies()

    def spectrum(self, length: int, device: torch.device) -> Spectrum:
        """Return the frequencies at a length [tokens] on a device."""
        spectrum = self.rope_scaling(length)
        moved_N, period_J = spectrum.positions_N, spectrum.period_J
        return spectrum._replace(
            inv_freq_J=self._inv_freq.on(spectrum.inv_freq_J, device),
            positions_N=None if moved_N is None else self._moved.on(moved_N, device),
            period_J=None if period_J is None else self._periods.on(period_J, device),
        )


class Rotary(Frequencies):
    """Base of the rotary schemes: the rotated share of a head."""

    caches_rotated_keys = True

    def __init__(self, settings: RotarySettings, shape: AttentionShape) -> None:
        super().__init__(settings, shape, width(shape.head_dim, settings.rotary_pct))

    def rotate(self, q_BTHD: Tensor, k_BSGK: Tensor, tables: QueryKeyTables) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys by the rotations `tables.query` and `tables.key`. K = E = D."""
        return apply(q_BTHD, tables.query), apply(k_BSGK, tables.key)


def width(head_dim: int, rotary_pct: float) -> int:
    """Return R = head_dim · rotary_pct [features]. ValueError unless it is an even integer of at least 4."""
    exact = head_dim * rotary_pct
    if abs(exact - round(exact)) > 1e-9 or round(exact) % 2 or round(exact) < 4:
        raise ValueError(f"head_dim {head_dim} x rotary_pct {rotary_pct:g} = {exact:g} rotated features")
    return round(exact)


def width_problems(model: ModelConfig, rotary_pct: float) -> list[Problem]:
    """Check for `Settings.problems` that the rotated width is even and at least 4."""
    head_dim = model.head_dim or model.d_model // model.n_heads
    try:
        width(head_dim, rotary_pct)
    except ValueError as error:
        rule = "pairs are rotated, so this must be an even integer of at least 4"
        fix = f"choose model.d_model, model.n_heads, model.head_dim so that head_dim x {rotary_pct:g} is even"
        return [("model.head_dim", f"{error}; {rule}", fix)]
    return []


def problems(model: ModelConfig, rotary_pct: float, scaling: RopeScaling) -> list[Problem]:
    """Check the rotated width, and then whether the frequencies fit it."""
    issues = width_problems(model, rotary_pct)
    return issues or scaling.problems(width(model.head_dim or model.d_model // model.n_heads, rotary_pct))
