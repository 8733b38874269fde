"""tests/outside/extras.py knows every extra. That each works, `python -m tests.outside.extras` shows."""

import re
import tomllib

from tests.checkout import ROOT
from tests.house.error_codes import messages
from tests.outside.extras import EXTRAS, HELD_ELSEWHERE, extras

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def test_every_extra_is_known():
    assert {*extras(), *HELD_ELSEWHERE} == DECLARED.keys()


def test_the_errors_that_the_bare_install_is_to_end_in_are_there():
    assert {one.needs for steps in EXTRAS.values() for one in steps if one.needs} <= messages().keys()


def test_messages_name_extras_that_there_are():
    texts = [message.text + message.fix for each in messages().values() for message in each]
    named = {
        one for text in texts for pair in re.findall(r"coca-train\[(\w+)\]|the extra '(\w+)'", text) for one in pair
    }
    named.discard("")
    assert {"data", "hf", "interop", "quality", "harness", "lora"} <= named <= DECLARED.keys()
