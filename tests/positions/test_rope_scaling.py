"""Every scaling of the frequencies against its formula in float64. Numbers in 40 digits: test_golden.py; CLEX has an
equation to solve instead of a formula: test_clex.py. Llama 3.1's: test_llama3.py."""

import math

import pytest

from coca_train.testing.rope_scaling import RopeScalingContract
from tests.positions import support


class Scaled(RopeScalingContract):
    """θ'_j and the temperature with s from the settings, or from the length where the name begins with dynamic_."""

    trained = True

    def spectrum(self, settings, rotary_dim, length):
        stretch, trained = settings.get("factor", 1.0), settings.get("original_seq_len")
        if self.follows_length:
            stretch = max(1.0, length / trained)
        return self.scaled(settings, rotary_dim, stretch)

    def scaled(self, p, dim, s):
        return self.pairs(p, dim), 1.0

    @staticmethod
    def pairs(p, dim, base=None):
        return [(base or p["theta"]) ** (-2 * j / dim) for j in range(dim // 2)]


class TestPlain(Scaled):
    rope_scaling = "plain"


class TestLinear(Scaled):
    rope_scaling = "linear"
    cases = (support.scaling("linear"),)

    def scaled(self, p, dim, s):
        return [theta / s for theta in self.pairs(p, dim)], 1.0


class TestDynamicLinear(TestLinear):
    rope_scaling, follows_length = "dynamic_linear", True
    cases = (support.scaling("dynamic_linear"),)


class TestNtk(Scaled):
    rope_scaling = "ntk"
    cases = (support.scaling("ntk"),)

    def scaled(self, p, dim, s):
        return self.pairs(p, dim, p["theta"] * s ** (dim / (dim - 2))), 1.0


class TestDynamicNtk(TestNtk):
    rope_scaling, follows_length = "dynamic_ntk", True
    cases = (support.scaling("dynamic_ntk"),)

    def spectrum(self, settings, rotary_dim, length):
        alpha, trained = settings["alpha"], settings["original_seq_len"]
        return self.scaled(settings, rotary_dim, 1.0 if length <= trained else alpha * length / trained - (alpha - 1))


class TestNtkByParts(Scaled):
    rope_scaling = "ntk_by_parts"
    cases = [support.scaling("ntk_by_parts", convention) for convention in ("paper", "indices", "unrounded", "authors")]

    def scaled(self, p, dim, s):
        turns, result = (p["beta_fast"], p["beta_slow"]), []
        for j, theta in enumerate(self.pairs(p, dim)):
            slowed, share = theta / s, self.kept(p, theta, j, dim, *turns)
            if p["convention"] == "authors":  # jquesnelle/yarn: beta_0, beta_1 and find_newbase_ntk
                ntk = (p["theta"] * s ** (dim / (dim - 2))) ** (-2 * j / dim)
                between = self.kept(p, theta, j, dim, 1.25, 0.75)
                slowed = slowed * (1 - between) + ntk * between
            result.append((1 - share) * slowed + share * theta)
        return result, 1.0

    @staticmethod
    def kept(p, theta, j, dim, fast, slow):
        """The ramp at a pair: 1 where it turns `fast` times or more over the trained window, 0 at `slow` and less."""
        trained = p["original_seq_len"]
        if p["convention"] == "paper":
            return min(max((trained * theta / (2 * math.pi) - slow) / (fast - slow), 0.0), 1.0)
        first, last = (
            dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(p["theta"])) for turns in (fast, slow)
        )
        if p["convention"] != "unrounded":
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        return 1 - min(max((j - first) / (last - first if last != first else 0.001), 0.0), 1.0)


class TestDynamicNtkByParts(TestNtkByParts):
    rope_scaling, follows_length = "dynamic_ntk_by_parts", True
    cases = [support.scaling("dynamic_ntk_by_parts", convention) for convention in ("paper", "indices", "authors")]


class TestYarn(TestNtkByParts):
    rope_scaling = "yarn"
    cases = [support.scaling("yarn", convention) for convention in ("paper", "code", "unrounded")]
    cases += [support.scaling("yarn", "code", temperature=0.9)]

    def scaled(self, p, dim, s):
        return super().scaled(p, dim, s)[0], p.get("temperature") or 0.1 * math.log(s) + 1


class TestDynamicYarn(TestYarn):
    rope_scaling, follows_length = "dynamic_yarn", True
    cases = [support.scaling("dynamic_yarn", convention) for convention in ("paper", "code")]


class TestDynamicYarnTuned(TestYarn):
    rope_scaling, follows_length = "dynamic_yarn_tuned", True
    cases = [support.scaling("dynamic_yarn_tuned", convention) for convention in ("paper", "code")]

    def spectrum(self, settings, rotary_dim, length):
        return self.scaled(settings, rotary_dim, max(settings["factor"], length / settings["original_seq_len"]))


class TestPartial(Scaled):
    rope_scaling = "partial"
    cases = (support.scaling("partial"),)

    def scaled(self, p, dim, s):
        turning = math.floor(p["share"] * dim / 2)
        return [theta if j < turning else 0.0 for j, theta in enumerate(self.pairs(p, dim))], 1.0


class TestLongrope(RopeScalingContract):
    rope_scaling, follows_length = "longrope", True
    lists = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [1.0, 2.0, 4.0, 8.0]}
    cases = (support.scaling("longrope"), support.scaling("longrope", **lists))

    def spectrum(self, settings, rotary_dim, length):
        s, trained = settings["factor"], settings["original_seq_len"]
        which, plain = ("long_factor", s) if length > trained else ("short_factor", 1.0)
        factors = settings[which] or [plain] * (rotary_dim // 2)
        theta = [settings["theta"] ** (-2 * j / rotary_dim) / f for j, f in enumerate(factors)]
        return theta, math.sqrt(1 + math.log(s) / math.log(trained))


class TestClex(RopeScalingContract):
    """Learned: its definition is in test_clex.py, and here there is what else holds for it."""

    rope_scaling, follows_length = "clex", True
    cases = (support.scaling("clex"),)

    def test_the_spectrum_equals_the_definition(self, settings):
        pytest.skip("tests/positions/test_clex.py")
