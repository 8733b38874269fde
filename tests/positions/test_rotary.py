"""Angles, frequencies and their settings."""

import pytest
import torch

from coca_train.positions import rope_scaling, rotary
from coca_train.positions.token_positions import Positions
from tests.positions import support


def typed(settings):
    return rope_scaling.settings_class(settings["name"])(**settings)


def test_neighbouring_positions_stay_distinct_at_32k():
    """In bfloat16, 32 766 and 32 767 are both 32 768."""
    pos = torch.tensor([[32766, 32767]])
    spectrum = typed(support.PLAIN).build(64)(32768)
    angle = rotary.angles(pos, spectrum)[0]
    assert angle.dtype == torch.float32
    assert torch.allclose(angle[1] - angle[0], spectrum.inv_freq_J, atol=4e-3)
    assert angle[0, 0] == 32766
    all_positions = rotary.angles(torch.arange(32768)[None], spectrum)[0, :, 0]
    assert all_positions.unique().numel() == 32768


def test_floating_point_positions_are_refused():
    with pytest.raises(AssertionError, match="integers"):
        rotary.angles(torch.tensor([[1.0]]), rope_scaling.Spectrum(torch.ones(2), 1.0))


def test_a_spectrum_may_put_positions_elsewhere():
    """Queries and keys go through one map, so that restarts and shared positions stay what they are."""
    spectrum = rope_scaling.Spectrum(torch.tensor([2.0]), 1.0, torch.tensor([0.0, 0.5, 7.0]))
    rows = torch.tensor([[0, 1, 2], [2, 0, 1]])
    assert rotary.angles(rows, spectrum)[..., 0].tolist() == [[0, 1, 14], [14, 0, 1]]
    query, key = rotary.query_and_key_tables(Positions.of(rows[:1, 1:]), Positions.of(rows[:1]), spectrum)
    assert torch.equal(query.cos_BT1R, key.cos_BT1R[:, 1:])


def test_half_split_pairs_turn_together():
    """One quarter turn takes (a, b) to (-b, a), a and b being j and j + R/2."""
    quarter = rope_scaling.Spectrum(torch.tensor([torch.pi / 2, 0.0]), 1.0)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])[None, None, None]
    turned = rotary.apply(x, rotary.cos_sin(torch.tensor([[1]]), quarter))
    assert torch.allclose(turned[0, 0, 0], torch.tensor([-3.0, 2.0, 1.0, 4.0]), atol=1e-6)


def test_only_the_first_part_turns_and_the_temperature_scales_all():
    spectrum = rope_scaling.Spectrum(torch.tensor([1.0]), 1.5)
    x = torch.randn(1, 1, 1, 6)
    out = rotary.apply(x, rotary.cos_sin(torch.tensor([[3]]), spectrum))
    assert torch.allclose(out[..., 2:], x[..., 2:] * 1.5)
    assert torch.allclose(out[..., :2].norm(), x[..., :2].norm() * 1.5)
    assert not torch.allclose(out[..., :2], x[..., :2] * 1.5)


def test_queries_and_keys_share_one_table_when_their_positions_are_the_same():
    pos = Positions.counted(0, 4)
    query, key = rotary.query_and_key_tables(pos, pos, typed(support.PLAIN).build(8)(4))
    assert query is key


@pytest.mark.parametrize(("head_dim", "pct"), [(64, 0.26), (63, 1.0), (66, 0.5), (16, 0.125), (8, 0.25)])
def test_widths_without_pairs_are_refused(head_dim, pct):
    with pytest.raises(ValueError, match="rotated features"):
        rotary.width(head_dim, pct)


@pytest.mark.parametrize(("head_dim", "pct", "width"), [(64, 0.25, 16), (80, 0.1, 8), (128, 1.0, 128), (80, 0.7, 56)])
def test_widths(head_dim, pct, width):
    assert rotary.width(head_dim, pct) == width
