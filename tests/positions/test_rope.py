"""RoPE, and no positions at all. Their numbers: test_golden.py."""

from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise, support


class TestContract(SchemeContract):
    scheme = "rope"
    cases = [support.rope(rotary_pct=0.5), support.rope(support.scaling("yarn"), 0.5)]
    cases += [support.rope(support.scaling("yarn"), 0.5) | {"temperature_on": "rotated"}]
    cases += [support.rope(support.scaling(name)) for name in ("dynamic_ntk", "partial")]
    angles = True

    def score(self, problem):
        return pairwise.turned(problem)


class TestNope(SchemeContract):
    scheme = "nope"

    def score(self, problem):
        return problem.content_BHTS
