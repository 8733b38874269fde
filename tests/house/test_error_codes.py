"""The index of error codes is that of the code, and complete; the page of engines is that of what was recorded."""

import re

from tests.house import conformance
from tests.house.error_codes import messages, page
from tests.house.imports import OURS, ROOT


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == page(), "make docs"


def test_what_engines_compute_is_what_was_recorded():
    assert (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8") == conformance.page(), "make docs"


def test_no_code_is_left_out():
    sources = (path.read_text(encoding="utf-8") for top in OURS for path in (ROOT / top).rglob("*.py"))
    assert {code for text in sources for code in re.findall(r"E-[A-Z]+-\d+", text)} == messages().keys()
