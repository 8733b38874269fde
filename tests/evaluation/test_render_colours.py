"""Colours of a report: contrast as WCAG defines it, and that everything can be seen in light and in dark."""

import re
from importlib.resources import files

import pytest

from coca_train.report.render import scales
from coca_train.report.render.scales import COLOURS
from tests.evaluation.demo import curves

CSS = files("coca_train.report.render").joinpath("page.css").read_text(encoding="utf-8")


def rgb(text):
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))


def test_contrast_as_defined():
    assert scales.contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert scales.contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.005)  # #777, known to fail AA
    shades = [sum(scales.ramp(i / 50)) for i in range(51)]
    assert shades == sorted(shades, reverse=True) and len(set(shades)) == 51
    dark = [sum(scales.ramp(i / 50, scales.DARK_RAMP)) for i in range(51)]
    assert dark == sorted(dark) and len(set(dark)) == 51
    assert scales.ramp(-1) == scales.RAMP[0] and scales.ramp(2) == scales.RAMP[-1]


def test_colours_of_the_page_can_be_seen_in_light_and_dark():
    named = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", CSS))
    pairs = {name: [rgb(colour) for colour in both.split(", ")] for name, both in named.items()}
    for theme in (0, 1):

        def contrast(one, other, theme=theme):
            return scales.contrast(pairs[one][theme], pairs[other][theme])

        for ink in ("ink", "soft", "accent", "edge"):
            assert contrast(ink, "page") >= 4.5, (ink, theme)
        for ink, ground in (
            ("ink", "theirs"),
            ("soft", "theirs"),
            ("ink", "panel"),
            ("soft", "panel"),
            ("tag-ink", "tag"),
        ):
            assert contrast(ink, ground) >= 4.5, (ink, ground, theme)
        for index in range(len(COLOURS)):
            assert contrast(f"c{index}", "page") >= 3, (index, theme)
    assert len(curves().lines) > len(COLOURS)
