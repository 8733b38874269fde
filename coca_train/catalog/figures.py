"""The figures of docs/: one small SVG for each scheme and attention pattern, computed by a model of one layer with
initial weights; rotary schemes have a second one. The same numbers give the same file.

Text stays text, on a white card, so that it can be read on a dark page too.

Shape legend: B batch (1), T queries, S keys, H heads, D head_dim, J pairs of features, K cached key width, C d_model.
"""

import io
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from torch import Tensor

from coca_train.attention import patterns
from coca_train.attention.pattern import Layout, Rule, seen
from coca_train.attention.scores import Part, Tile, part_of, scores, slice_tile, tensors_of
from coca_train.catalog.entries import Entry, entries
from coca_train.catalog.facts import ReferenceModel, load_reference
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.positions.base import Position, PositionedQK, Projections, Terms
from coca_train.positions.rotary import Rotary
from coca_train.positions.token_positions import Positions
from coca_train.report.render.scales import COLOURS
from coca_train.runtime.durable import write_text

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "coca_train",
    "svg.fonttype": "none",
    "path.simplify": False,
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
CURVES_SIZE, MASK_SIZE = (4.6, 2.7), (3.6, 2.9)  # [inches]
LEVELS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 18)  # of distance, in the masks
HEADS, WIDTH, WINDOW = 8, 64, 512  # of the model drawn: heads, their width, training window [tokens]
FARTHEST = 256  # largest distance drawn [tokens]
N_DRAWN, N_WINDOW, N_FIRST = 18, 6, 2  # of the masks: tokens, training window, sinks and global tokens
SEED = 0
HIDES = -1e9

CAPTIONS = {
    "what is added to the score": "by a scheme, by distance, for the same random query and key (N(0, 1)) at "
    f"every position, in heads 1, 3, 5 and 7 of {HEADS}, each {WIDTH} wide; learned parameters as they start (seed "
    f"{SEED})",
    "the score": "of the same query and key at every position, all pairs of features at angle 0, by distance: solid "
    f"with the query at position {FARTHEST}, dashed with the key at position 0. A scheme is relative where the two "
    "coincide. Frequencies are plain; learned parameters as they start. Of "
    "linear_rope the product of the rotated features, before the division",
    "likeness of positions": "cosine of what is added to the embeddings at position m and at position n, for three m; "
    "learned parameters as they start",
    "what is seen": f"{N_DRAWN} tokens, training window {N_WINDOW}, {N_FIRST} sinks or global tokens; the colour is "
    "the distance at which the scheme takes the key to stand, blank: not seen",
    "long-term decay": "of rotary schemes, the factor of the bound on a score that falls with the distance s "
    "(RoFormer, arXiv 2104.09864, section 3.4.3; CoCA, arXiv 2309.08646, Eq. 20 and 21): the mean over j of |S_j|, the "
    f"sum of what the first j of a head's J = {WIDTH // 2} pairs add, each of length 1. The other factor, J max |h_i+1 "
    "- h_i|, is the query's and the key's. A pair of RoPE adds e^isθ, one of xPos that times its fading, one of CoCA "
    "cos sθ, as its key is collinear with the query (slack CoCA: where Eq. 12 holds). Frequencies are plain; dashed: "
    "RoPE's",
}
ADDED, SCORE, LIKENESS, MASK, DECAY = CAPTIONS
DECAYS = "-decay"  # behind the name of a scheme: its second figure; no scheme's own name has a hyphen


class Curve(NamedTuple):
    """A line: y over 0, 1, 2 …"""

    label: str
    y: list[float]
    dashed: bool = False


class Curves(NamedTuple):
    """A figure of lines."""

    lines: list[Curve]
    x_label: str
    y_label: str


class Mask(NamedTuple):
    """A figure of pairs: the distance at which each query (row) takes each key to stand; None: not seen."""

    distance: list[list[int | None]]


def figure_kind(entry: Entry) -> str:
    """Return which of CAPTIONS the first figure of a scheme or an attention pattern is."""
    if entry.group == "attention_pattern":
        return MASK
    position = _model(entry).position
    if not position.by_pairs:
        return LIKENESS
    q = torch.ones(1, 1, HEADS, WIDTH)
    mapped = _mapped(_model(entry), q, q[..., : position.key_dim], torch.zeros(1, 1, dtype=torch.long))
    adds = (mapped.terms, mapped.score_mod) != (Terms(), None)
    # What sums up the tokens in between shows nothing where there is one key.
    return ADDED if adds and (position.relative or position.carries) else SCORE


@torch.no_grad()
def compute_figure(entry: Entry) -> Curves | Mask:
    """Compute the figure of a scheme or an attention pattern."""
    draw = {ADDED: added, SCORE: score, LIKENESS: likeness, MASK: mask}
    return draw[figure_kind(entry)](entry)


def added(entry: Entry) -> Curves:
    """Compute what terms and hook add to the scores of the last query over equal keys."""
    generator = torch.Generator().manual_seed(SEED)
    q_BTHD, k_BTHD = (torch.randn(1, 1, HEADS, WIDTH, generator=generator) for _ in range(2))
    part = _part(_model(entry), q_BTHD, k_BTHD, _at(FARTHEST), _all())
    added_HS = _scores(part) - _scores(part._replace(terms=Terms(), score_mod=None))
    added_HS = added_HS.masked_fill(added_HS < HIDES, math.nan)  # a key that a scheme itself hides is a gap
    lines = [Curve(f"head {h + 1}", added_HS[h].flip(0).tolist()) for h in range(0, HEADS, 2)]
    return Curves(lines, "distance [tokens]", "added to the score")


def score(entry: Entry) -> Curves:
    """Compute the scores of a far query over all keys, and of all queries over the first key."""
    model = _model(entry)
    q_BTHD = torch.cat((torch.ones(1, 1, HEADS, WIDTH // 2), torch.zeros(1, 1, HEADS, WIDTH // 2)), -1)
    k_BTHK = q_BTHD[..., : model.position.key_dim]
    far = _scores(_part(model, q_BTHD, k_BTHK, _at(FARTHEST), _all()))[0].flip(0)
    # Mapped with all the keys in between, which may say how far apart others are.
    mapped = _part(model, q_BTHD, k_BTHK, _all(), _all())
    first = _part(model, q_BTHD, k_BTHK, _all(), _at(0))
    near = _scores(first._replace(q_BTHE=mapped.q_BTHE, k_BSGE=mapped.k_BSGE[:, :1]))[0]
    lines = [Curve(f"query at {FARTHEST}", far.tolist()), Curve("key at 0", near.tolist(), dashed=True)]
    return Curves(lines, "distance [tokens]", "score")


def likeness(entry: Entry) -> Curves:
    """Compute cosines between position embeddings."""
    x_TC = _model(entry).position.embed(torch.zeros(1, FARTHEST + 1, HEADS * WIDTH), Positions.of(_all()))[0]
    x_TC = x_TC / x_TC.norm(dim=-1, keepdim=True)
    lines = [Curve(f"m = {m}", (x_TC @ x_TC[m]).tolist()) for m in (0, FARTHEST // 4, FARTHEST // 2)]
    return Curves(lines, "position n [tokens]", "cosine of m and n")


def has_decay(entry: Entry) -> bool:
    """Return whether the scheme rotates, and so has a figure of its decay."""
    return entry.group == "position" and isinstance(_model(entry).position, Rotary)


@torch.no_grad()
def decay(entry: Entry) -> Curves:
    """Compute the falling factor of the bound on a rotary scheme's score, and RoPE's for comparison."""
    own = Curve(entry.name, decay_bound(_model(entry).position, FARTHEST).tolist())
    rope = entries("position")["rope"]
    theirs = (
        [Curve("rope", decay_bound(_model(rope).position, FARTHEST).tolist(), dashed=True)] if entry != rope else []
    )
    return Curves([own, *theirs], "distance [tokens]", "mean of |S_j|")


def decay_bound(position: Position, farthest: int) -> Tensor:
    """Compute the mean over j of |S_j| (see CAPTIONS) by distance 0 … farthest, with the scheme's own rotation of a
    query of pairs (1, 0) and the keys (1, 0) and (0, 1). A key of one number a pair has no sine."""
    assert isinstance(position, Rotary)
    n_pairs = position.rotary_dim // 2
    q_BTHD = torch.cat((torch.ones(n_pairs), torch.zeros(n_pairs))).expand(1, farthest + 1, 1, -1)
    tables: Any = position(torch.arange(farthest + 1)[None], torch.zeros(1, 1, dtype=torch.long), farthest + 1)
    parts = []
    for first in range(0, position.key_dim, n_pairs):
        k_BSHK = torch.zeros(1, 1, 1, position.key_dim)
        k_BSHK[..., first : first + n_pairs] = 1
        turned_q, turned_k = position.rotate(q_BTHD, k_BSHK, tables)
        parts.append((turned_q * turned_k)[0, :, 0].unflatten(-1, (2, n_pairs)).sum(-2).double().cumsum(-1))
    return torch.stack(parts).square().sum(0).sqrt().mean(-1)


def mask(entry: Entry) -> Mask:
    """Compute the distances at which the scheme places keys, where a pair is seen."""
    settings = _drawn().trained_at(N_WINDOW).pattern(entry)
    few: dict[str, object] = {name: N_FIRST for name in ("n_sink", "n_global") if hasattr(settings, name)}
    if patterns.build(settings).bidirectional:
        few["window"] = N_WINDOW  # without one there is nothing to see: every pair
    rules = patterns.build(replace(settings, **few))
    distance: list[list[int | None]] = [[None] * N_DRAWN for _ in range(N_DRAWN)]
    pos_BT, everything = torch.arange(N_DRAWN)[None], slice(0, N_DRAWN)
    for layout in rules.layouts(pos_BT, pos_BT):
        for query, key in seen(layout, everything, everything)[0].nonzero().tolist():
            distance[query][key] = abs(int(layout.pos_BT[0, query] - layout.pos_BS[0, key]))
    return Mask(distance)


def _model(entry: Entry) -> Transformer:
    """Build one layer with initial weights, in eval mode."""
    reference = _drawn()
    causal = reference.pattern(entries("attention_pattern")["causal"])
    model = Transformer(reference.model, reference.scheme(entry), causal, vocab_size=2, max_seq_len=WINDOW).eval()
    init_weights(model, reference.model, SEED)
    return model


@cache
def _drawn() -> ReferenceModel:
    reference = load_reference("neox_tiny", WINDOW)
    shape = {"n_layers": 1, "d_model": HEADS * WIDTH, "n_heads": HEADS, "n_kv_heads": None, "head_dim": None}
    return replace(reference, config=replace(reference.config, model=replace(reference.model, **shape)))


def _at(position: int) -> Tensor:
    return torch.tensor([[position]])


def _all() -> Tensor:
    return torch.arange(FARTHEST + 1)[None]


def _mapped(
    model: Transformer, q_BTHD: Tensor, k_BSHK: Tensor, pos_BT: Tensor, pos_BS: Tensor | None = None
) -> PositionedQK:
    """Apply the first layer's scheme to the same query and key at these positions."""
    pos_BS = pos_BT if pos_BS is None else pos_BS
    attention = model.first_attention
    tables = model.position(pos_BT, pos_BS, FARTHEST + 1)
    q, k = q_BTHD.expand(-1, pos_BT.shape[1], -1, -1), k_BSHK.expand(-1, pos_BS.shape[1], -1, -1)
    x_BSC = torch.randn(1, 1, HEADS * WIDTH, generator=torch.Generator().manual_seed(SEED + 1))
    tokens = attention.position.tokens(x_BSC.expand(-1, pos_BS.shape[1], -1))
    project = Projections(attention.project_q, attention.project_k)
    return attention.position(model.position, q, k, tables, project, tokens)


def _part(model: Transformer, q_BTHD: Tensor, k_BSHK: Tensor, pos_BT: Tensor, pos_BS: Tensor) -> Part:
    queries, keys = (Positions.of(pos)._replace(contiguous=False) for pos in (pos_BT, pos_BS))
    layout = Layout(Rule(), queries, keys, queries, keys, queries, None, False, {})
    return part_of(_mapped(model, q_BTHD, k_BSHK, pos_BT, pos_BS), layout)


def _scores(part: Part) -> Tensor:
    """Compute scores of one query over all keys, or of all queries over one key, by head."""
    everything = slice(0, part.q_BTHE.shape[1]), slice(0, part.k_BSGE.shape[1])
    tile = Tile(part.layout, *everything, shifted=False)
    scores_BHts, _ = scores(part.hook, slice_tile(tensors_of(part), tile), tile, WIDTH**-0.5, None)
    return scores_BHts[0].flatten(1)


def figure_names() -> list[str]:
    """Return the names of the files of all figures."""
    offered = entries("position") | entries("attention_pattern")
    return [*offered, *(name + DECAYS for name, entry in offered.items() if has_decay(entry))]


def write_figures(folder: Path) -> None:
    """Write <name>.svg for every name."""
    offered = entries("position") | entries("attention_pattern")
    for name in figure_names():
        draw = decay if name.endswith(DECAYS) else compute_figure
        write_text(folder / f"{name}.svg", render_svg(draw(offered[name.removesuffix(DECAYS)])))


def render_svg(drawn: Curves | Mask) -> str:
    """Return a figure as SVG; coordinates to a hundredth of a point, equal on all processors."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        draw_figure(drawn).savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", buffer.getvalue())


def draw_figure(drawn: Curves | Mask) -> Figure:
    """Draw a figure."""
    page = Figure(figsize=CURVES_SIZE if isinstance(drawn, Curves) else MASK_SIZE, facecolor="white")
    axes = page.add_subplot()
    if isinstance(drawn, Curves):
        page.subplots_adjust(left=0.15, right=0.97, bottom=0.18, top=0.90)
        _lines(axes, drawn)
    else:
        page.subplots_adjust(left=0.14, right=0.97, bottom=0.17, top=0.97)
        _pairs(axes, drawn)
    return page


def _lines(axes: Axes, drawn: Curves) -> None:
    for index, curve in enumerate(drawn.lines):
        style, width = ((0, (4, 3)), 1.8) if curve.dashed else ("-", 1.5)
        axes.plot(curve.y, label=curve.label, color=COLOURS[index], linestyle=style, linewidth=width)
    axes.set_xlabel(drawn.x_label)
    axes.set_ylabel(drawn.y_label)
    axes.grid(True, color="0.9", linewidth=0.6)
    axes.margins(x=0)
    above = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    axes.legend(frameon=False, fontsize=8, ncols=len(drawn.lines), handlelength=1.8, columnspacing=1.4, **above)


def _pairs(axes: Axes, drawn: Mask) -> None:
    """Draw a square for every pair that is seen, shaded by its distance."""
    squares, values = [], []
    for query, row in enumerate(drawn.distance):
        for key, distance in enumerate(row):
            if distance is not None:
                squares.append([(key, query), (key + 1, query), (key + 1, query + 1), (key, query + 1)])
                values.append(distance)
    shades = PolyCollection(squares, array=values, cmap="viridis", norm=BoundaryNorm(LEVELS, 256), linewidths=0)
    axes.add_collection(shades)
    axes.set(xlim=(0, N_DRAWN), ylim=(N_DRAWN, 0), aspect="equal", xlabel="key", ylabel="query")
    ticks = range(0, N_DRAWN, 5)
    axes.set_xticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])
    axes.set_yticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])
    axes.figure.colorbar(shades, ax=axes, label="distance", spacing="uniform", ticks=LEVELS)
