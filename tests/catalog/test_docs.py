"""docs/ is what the code gives: text exactly, figures up to what other processors and versions of matplotlib round."""

import re
from pathlib import Path

import pytest

from coca_train.catalog.facts import load_reference
from coca_train.catalog.figures import figure_names, write_figures
from coca_train.catalog.pages import document
from coca_train.commands.schemes import SCHEMES
from coca_train.config.load import assemble, load
from coca_train.hub.conversions import summaries

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
TEXT = re.compile(r"(?<=>)[^<>]+(?=</text>)")
POINTS = 0.5  # what coordinates may differ by: matplotlib 3.10 puts labels 0.3 points from where 3.11 does
MADE_OF_CONTENT = re.compile(r'(?:\bid="|url\(#|href="#)[^")]*')  # matplotlib names clips and markers by a hash


def differences(old: str, new: str) -> list[str]:
    """What separates two SVGs: labels, elements, coordinates that are too far apart."""
    if TEXT.findall(old) != TEXT.findall(new):
        return ["other labels"]
    old, new = (MADE_OF_CONTENT.sub("", TEXT.sub("", text)) for text in (old, new))
    if NUMBER.sub("#", old) != NUMBER.sub("#", new):
        return ["other elements"]
    pairs = zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
    return [f"{a} is now {b}" for a, b in pairs if abs(float(a) - float(b)) > POINTS]


def test_the_page_is_up_to_date():
    """Run `make docs` when this fails."""
    preset = load(assemble(SCHEMES, [])).config
    assert (DOCS / "schemes.md").read_text(encoding="utf-8") == document(
        load_reference(preset.model, preset.seq_len), summaries()
    )


def test_the_figures_are_up_to_date(tmp_path):
    """Run `make docs` when this fails."""
    write_figures(tmp_path)
    assert {path.name for path in (DOCS / "figures").iterdir()} == {f"{name}.svg" for name in figure_names()}
    for path in sorted(tmp_path.iterdir()):
        committed = (DOCS / "figures" / path.name).read_text(encoding="utf-8")
        assert differences(committed, path.read_text(encoding="utf-8")) == [], path.name
        assert len(committed) < 40_000


def test_every_link_of_the_page_leads_somewhere():
    page = (DOCS / "schemes.md").read_text(encoding="utf-8")
    titles = {line.lstrip("# ") for line in page.splitlines() if line.startswith("#")}
    for target in re.findall(r"\]\(([^)]+)\)", page):
        if target.startswith("#"):
            assert target[1:] in titles
        elif not target.startswith("https://"):
            assert (DOCS / target).is_file(), target


@pytest.mark.parametrize(
    ("change", "differ"),
    [
        (lambda text: text, False),
        (lambda text: text.replace("12.00", "12.4"), False),
        (lambda text: text.replace("12.00", "12.6"), True),
        (lambda text: text.replace("L 1 2", "L 1 2 L 3 4"), True),
        (lambda text: text.replace("red", "blue"), True),
        (lambda text: text.replace("0.02", "0.03"), True),
        (lambda text: text.replace("p3f9", "p4a0"), False),
    ],
)
def test_differences_are_found(change, differ):
    text = '<path d="M 12.00 0 L 1 2" clip-path="url(#p3f9)" style="fill: red"/><text x="7">0.02</text><g id="p3f9"/>'
    assert bool(differences(text, change(text))) == differ
