"""An axis never turns less than its interval into a slope."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from coca_train.report.blocks import Line
from coca_train.report.render import pictures
from coca_train.report.render.chart import NARROW, PANEL, WIDE, Plot, small_multiples
from coca_train.report.render.scales import LEAST_RATIO, TIMES_INTERVAL, axis_limits
from tests.evaluation.demo import lines_of
from tests.evaluation.page_parser import render

NOISE = (602.72, 602.55, 602.95)  # perplexities of three documents


def picture(y, half=None, **fields):
    low, high = (None if half is None else tuple(v + sign * half for v in y) for sign in (-1, 1))
    return lines_of(Line(label="one", x=tuple(map(float, range(1, len(y) + 1))), y=y, low=low, high=high), **fields)


def height(block):
    """Of the y axis, in logarithms where it is logarithmic."""
    low, high = (math.log(v) if block.y_log else v for v in axis_limits(block)[1])
    return high - low


@pytest.mark.parametrize("y_log", [False, True])
@pytest.mark.parametrize("half", [None, 20.0])
def test_what_lies_within_noise_looks_flat(half, y_log):
    block = picture(NOISE, half, y_log=y_log)
    change = math.log(602.95 / 602.55) if y_log else 0.4
    assert change < 0.01 * height(block)
    path = render("chart", Plot(block, WIDE, "")).split('class="stroke" d="M')[1].split('"')[0]
    ys = [float(point.split()[1]) for point in path.split("L")]
    assert max(ys) - min(ys) < 0.01 * WIDE.height


def test_the_rule():
    """Twice the widest interval; without one, a tenth of the middle figure."""
    assert height(picture(NOISE, 20.0)) == pytest.approx(40 * TIMES_INTERVAL)
    assert height(picture(NOISE)) == pytest.approx(602.72 * LEAST_RATIO)
    assert height(picture(NOISE, y_log=True)) == pytest.approx(math.log(1 + LEAST_RATIO))


def test_a_change_beyond_its_interval_keeps_the_axis_it_had():
    block = picture((10.0, 20.0, 40.0), 1.0)
    assert height(block) == pytest.approx((41 - 9) * 1.08)


def test_limits_that_a_picture_sets_stay():
    assert axis_limits(picture((0.5, 0.5), 0.3, y_limits=(0.0, 1.0)))[1] == (0.0, 1.0)
    low, high = axis_limits(picture(NOISE, 20.0, y_limits=(None, 610.0)))[1]
    assert high == 610.0 and low == pytest.approx(610 - 80)  # what is missing above is shown below
    wild = Line(label="wild", x=(1.0, 2.0), y=(600.0, 1e6), low=(590.0, 1e5), high=(610.0, 1e7))
    block = lines_of(wild, y_limits=(500.0, 1000.0))
    assert axis_limits(block)[1] == (500.0, 1000.0)
    low, high = axis_limits(replace(block, y_limits=(None, 1000.0), y_log=True))[1]
    assert high == 1000.0 and low > 300  # what leaves the picture makes no room in it


@pytest.mark.parametrize("level", [1e-4, 0.2])
def test_what_must_be_passed_lies_in_the_picture(level):
    block = picture((0.063, 0.034), 0.005, levels=((level, "what passes is more than this"),))
    low, high = axis_limits(block)[1]
    assert low < level < high and low < 0.029 and high > 0.068
    drawn = render("chart", Plot(block, PANEL, ""))
    (place,) = re.findall(r'class="level" d="M[0-9.]+ ([0-9.-]+)H', drawn)
    assert 10 < float(place) < PANEL.height - PANEL.bottom
    (axes,) = pictures._together(block).axes
    assert axes.get_ylim() == pytest.approx((low, high))
    assert level in [float(np.ravel(line.get_ydata())[0]) for line in axes.lines]


def clipped():
    """Two curves of which the last points lie above the picture, and one below it."""
    points = {"a": (1.0, 2.0, 9.0), "b": (1.0, 0.1, 8.0)}
    lines = (Line(label=name, x=(128.0, 256.0, 512.0), y=y) for name, y in points.items())
    return lines_of(*lines, x_log=True, y_limits=(0.5, 4.0), marks=((128.0, "training window"),))


@pytest.mark.parametrize("sheet", [WIDE, NARROW, PANEL])
def test_what_leaves_the_picture_is_shown_at_its_edge(sheet):
    drawn = render("chart", Plot(clipped(), sheet, ""))
    found = re.findall(
        r'class="beyond" transform="translate\(([0-9.]+) ([0-9.]+)\)" d="[^"]+"><title>(. at [0-9]+: [0-9.]+)', drawn
    )
    (x_a, top, a), (x_below, bottom, below), (x_b, again, b) = [(float(x), float(y), words) for x, y, words in found]
    assert (a, below, b) == ("a at 512: 9", "b at 256: 0.1", "b at 512: 8")
    assert top == again < bottom and x_below < x_b < x_a  # side by side, so that each can be pointed at
    assert drawn.count("beyond the picture") == 3


def banded():
    """Four of them with intervals, so that each has a panel."""
    return replace(clipped(), lines=tuple(replace(line, low=line.y, high=line.y) for line in clipped().lines * 2))


def test_what_leaves_the_picture_is_shown_in_files_too():
    figure = pictures._together(clipped())
    signs = [(each.get_text(), each.xy) for each in figure.axes[0].texts if each.get_text() in "▲▼"]
    assert signs == [("▲", (512.0, 1.0)), ("▼", (256.0, 0.0)), ("▲", (512.0, 1.0))]


def test_alone_in_a_panel_it_stands_at_its_place():
    plots = small_multiples(banded())
    places = [[arrow.x for arrow in plot.beyond(index)] for index, plot in enumerate(plots)]
    (of_a,), (below, of_b) = places[:2]
    assert of_a == of_b and places[2:] == places[:2] and below != of_b


def test_every_panel_says_what_its_dotted_line_is():
    plots = small_multiples(banded())
    assert [[mark.words for mark in plot.marks] for plot in plots] == [["training window"]] * 4
    figure = pictures._small_multiples(banded())
    assert all("training window" in [words.get_text() for words in axes.texts] for axes in figure.axes)


def test_words_that_have_no_room_give_way_to_the_value():
    marks = ((128.0, "training window of a very long name, and more"), (256.0, "training window of another"))
    plot = Plot(replace(clipped(), marks=marks), PANEL, "")
    assert [mark.words for mark in plot.marks] == ["128", "256"]
