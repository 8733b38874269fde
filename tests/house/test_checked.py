"""docs/checked.md has every scheme, with who else says the same; its figures are those of the machine that made it."""

import re

import pytest

from coca_train.positions import SCHEMES
from tests.house.checked import PAGE, contracts, differences, sources

ROWS = dict(re.findall(r"^\| `(\w+)` *\| ([^|]+?) *\|", PAGE.read_text(encoding="utf-8"), re.M))
CONTRACTS = {contract.scheme: (module, contract) for module, contract in contracts()}


def test_every_scheme_has_a_row():
    assert set(ROWS) == set(CONTRACTS) == set(SCHEMES.names())


@pytest.mark.parametrize("scheme", CONTRACTS)
def test_a_row_says_who_else_says_the_same(scheme):
    assert ROWS[scheme] == sources(CONTRACTS[scheme][0], scheme)


def test_differences_are_measured():
    assert set(differences(CONTRACTS["alibi"][1])) == {"attention", "gradients", "cached step"}
    assert max(differences(CONTRACTS["alibi"][1]).values()) < 1e-13
    assert 1e-10 < differences(CONTRACTS["rope"][1])["attention"] < 1e-6  # float32 angles
