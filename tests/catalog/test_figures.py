"""What is drawn, against formulas and masks written here."""

import math
import re

import pytest

from coca_train import positions
from coca_train.catalog import figures
from coca_train.catalog.entries import entries
from coca_train.catalog.figures import (
    Mask,
    compute_figure,
    decay,
    decay_bound,
    figure_kind,
    figure_names,
    has_decay,
    render_svg,
)
from coca_train.positions.base import AttentionShape
from tests.catalog.conftest import WORKED
from tests.models.conftest import PLAIN

THETA = [10000 ** (-2 * j / 64) for j in range(32)]


def drawn(name):
    return compute_figure((entries("position") | entries("attention_pattern"))[name])


def line(name, label):
    return next(curve.y for curve in drawn(name).lines if curve.label == label)


def test_every_scheme_and_attention_pattern_has_a_figure_of_its_kind():
    kinds = {name: figure_kind(entry) for name, entry in (entries("position") | entries("attention_pattern")).items()}
    decays = [name for name, entry in entries("position").items() if has_decay(entry)]
    assert {*decays} & {*WORKED} == {"rope", "xpos", "coca", "coca_strict"}
    assert figure_names() == [*kinds, *(f"{name}-decay" for name in decays)]
    by_kind = {label: {name for name, each in kinds.items() if each == label} for label in figures.CAPTIONS}
    assert by_kind[figures.MASK] == set(entries("attention_pattern"))
    by_kind = {label: schemes & {*WORKED} for label, schemes in by_kind.items()}
    assert by_kind[figures.LIKENESS] == {"learned", "sinusoidal"}
    assert by_kind[figures.SCORE] == {"rope", "xpos", "coca", "coca_strict", "nope", "tupe", "fire"}
    assert len(by_kind[figures.ADDED]) == len(WORKED) - 9


def test_alibi_is_its_slopes():
    """Heads 1 and 3 of 8 lose a half and an eighth per token."""
    assert line("alibi", "head 1") == pytest.approx([-r / 2 for r in range(257)])
    assert line("alibi", "head 3") == pytest.approx([-r / 8 for r in range(257)])


def test_rope_is_a_sum_of_cosines_wherever_it_stands():
    cosines = [sum(math.cos(r * theta) for theta in THETA) / 8 for r in range(257)]
    for name in ("rope", "coca_strict"):
        assert line(name, "query at 256") == pytest.approx(cosines, abs=1e-4)
        assert line(name, "key at 0") == pytest.approx(cosines, abs=1e-4)


# A head of 4: θ = 1 and 1/100. Distance 1: |S_1| = 1 and |S_2| = 2 cos(0.99 / 2) = 1.759936 of RoPE; of CoCA
# cos 1 = 0.540302 and cos 1 + cos 0.01 = 1.540252; of xPos, whose pairs have faded to 0.997556 and 0.999137 (ζ = 2/7
# and 9/14 to the power of 1/512), 0.997556 and √(0.995118 + 0.998275 + 2 · 0.997556 · 0.999137 cos 0.99) = 1.757028.
@pytest.mark.parametrize(
    ("section", "by_hand"),
    [
        ({"scheme": "rope"}, (1 + 1.759936) / 2),
        ({"scheme": "coca", "variant": "strict", "t_width": "half"}, (0.540302 + 1.540252) / 2),
        ({"scheme": "coca", "variant": "slack", "t_width": "full_mean"}, (0.540302 + 1.540252) / 2),
        ({"scheme": "xpos", "gamma": 0.4, "scale_base": 512.0}, (0.997556 + 1.757028) / 2),
    ],
    ids=lambda value: value.get("variant", value["scheme"]) if isinstance(value, dict) else "",
)
def test_the_bound_on_a_score_by_hand(section, by_hand):
    settings = positions.settings(section | {"rotary_pct": 1.0, "rope_scaling": PLAIN})
    position = positions.build(settings, AttentionShape(1, 1, 4, 4, 16))
    assert decay_bound(position, 1).tolist() == pytest.approx([1.5, by_hand], abs=2e-6)


def test_cocas_bound_stays_below_ropes():
    """Eq. 21 against Eq. 20: a real part is never above its absolute value."""
    own, rope = decay(entries("position")["coca"]).lines
    assert (own.label, rope.label, rope.dashed) == ("coca", "rope", True)
    assert all(mine <= theirs + 1e-4 for mine, theirs in zip(own.y, rope.y, strict=True))
    assert rope.y[0] == pytest.approx(16.5) and max(rope.y[200:]) < 7
    assert [curve.label for curve in decay(entries("position")["rope"]).lines] == ["rope"]


def test_slack_coca_depends_on_where_it_stands():
    """Queries (1, 0) and t = 1 in every pair: Σ cos(mθ)(cos(nθ) - sin(nθ)) / √D."""
    for label, pairs in (
        ("query at 256", [(256, 256 - r) for r in range(257)]),
        ("key at 0", [(r, 0) for r in range(257)]),
    ):
        expected = [sum(math.cos(m * t) * (math.cos(n * t) - math.sin(n * t)) for t in THETA) / 8 for m, n in pairs]
        assert line("coca", label) == pytest.approx(expected, abs=1e-4)


def test_terms_stay_the_same_beyond_their_last_distance():
    for name, last in (("shaw", 16), ("disentangled", 64), ("t5", 113)):  # t5: where the last bucket begins
        for curve in drawn(name).lines:
            assert len(set(curve.y[last:])) == 1
            assert len(set(curve.y[:last])) > 10


def test_hooks_are_drawn_as_what_they_make_of_the_scores():
    """fox: the same input everywhere, so the same gate, and a straight line; fire: relative up to its threshold."""
    for curve in drawn("fox").lines:
        assert curve.y == pytest.approx([r * curve.y[1] for r in range(257)], rel=1e-4)
        assert curve.y[1] < -0.1
    assert line("fire", "query at 256") == pytest.approx(line("fire", "key at 0"), abs=1e-6)
    assert all(len(set(curve.y)) > 10 for name in ("cope", "dape") for curve in drawn(name).lines)


def test_sinusoidal_is_like_its_neighbours():
    expected = [sum(math.cos((n - 64) * 10000 ** (-2 * j / 512)) for j in range(256)) / 256 for n in range(257)]
    assert line("sinusoidal", "m = 64") == pytest.approx(expected, abs=1e-5)


def test_masks():
    """Window 6, two sinks: the cache counts 0 1 | 2 … 7 for a query that has lost tokens."""
    rows = drawn("sinks").distance
    assert rows[5] == [5, 4, 3, 2, 1, 0] + [None] * 12
    assert rows[12] == [7, 6] + [None] * 5 + [5, 4, 3, 2, 1, 0] + [None] * 5
    assert drawn("lambda_mask").distance[12] == [6, 6] + [None] * 5 + [5, 4, 3, 2, 1, 0] + [None] * 5
    assert drawn("rerope").distance[12] == [6] * 7 + [5, 4, 3, 2, 1, 0] + [None] * 5
    assert drawn("segments").distance[13] == [None] * 12 + [1, 0] + [None] * 4
    assert drawn("sliding_window").distance[12] == [None] * 7 + [5, 4, 3, 2, 1, 0] + [None] * 5
    assert drawn("causal").distance[17] == list(range(17, -1, -1))


def test_a_figure_is_a_small_text_with_a_square_for_every_pair():
    text = render_svg(Mask([[0, None], [1, 0]]))
    assert text.count("#440154") >= 2  # the colour of distance 0
    assert ">query</text>" in text and ">distance</text>" in text
    assert not re.search(r"\d\.\d{3}", text), "coordinates are rounded"
    assert 5_000 < len(render_svg(drawn("rope"))) < 40_000
