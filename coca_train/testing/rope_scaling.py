"""The contract of every RoPE scaling, as a class of tests: `class TestMine(RopeScalingContract)`."""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn

from coca_train import positions
from coca_train.positions import ROPE_SCALINGS, hugging_face, rope_scaling
from coca_train.positions.base import AttentionShape
from coca_train.positions.rope_scaling import RopeScaling
from coca_train.testing import parts
from coca_train.testing.contract import Case, Contract

DIMS = (8, 16, 64)  # rotated features
WINDOW = 256  # of a model whose scaling knows no length [tokens]


class RopeScalingContract(Contract):
    """The tests of one file of positions/rope_scaling/. A subclass gives its name and its definition.

    cases: settings without the key `name`, besides those of the yamls in configs/position/rope_scaling/ that name it.
    follows_length: whether the frequencies are others at other lengths.
    """

    kind, registry, shipped = "rope_scaling", ROPE_SCALINGS, "position/rope_scaling"
    rope_scaling: ClassVar[str]
    follows_length: ClassVar[bool] = False

    def spectrum(self, settings: Case, rotary_dim: int, length: int) -> tuple[list[float], float]:
        """Return (θ of the rotary_dim / 2 pairs, the fastest first [radians per position], temperature) in float64."""
        raise NotImplementedError(f"{type(self).__name__}.spectrum: write the formula of every pair j")

    def test_the_spectrum_equals_the_definition(self, settings: Case) -> None:
        """Up to the trained length and beyond: computed in float64, rounded once, half a unit in the last place."""
        for dim in self._dims(settings):
            for length in _lengths(settings):
                spectrum = self._build(settings, dim)(length)
                theta, temperature = self.spectrum(settings, dim, length)
                exact = torch.tensor(theta, dtype=torch.float64)
                assert spectrum.inv_freq_J.dtype == torch.float32
                assert ((spectrum.inv_freq_J.double() - exact).abs() <= exact * 2**-24 * 1.001).all(), (dim, length)
                assert abs(spectrum.temperature - temperature) <= 1e-12 * temperature, (dim, length)

    def test_it_is_a_pure_function_of_the_length(self, settings: Case) -> None:
        """After a call far out, a short one gives the bits that it gave before."""
        (dim, *_), (near, *_, far) = self._dims(settings), _lengths(settings)
        module = self._build(settings, dim)
        before, beyond, after = module(near), module(far), module(near)
        assert torch.equal(before.inv_freq_J, after.inv_freq_J) and before.temperature == after.temperature
        assert torch.equal(before.inv_freq_J, self._build(settings, dim)(near).inv_freq_J)
        assert torch.equal(before.inv_freq_J, beyond.inv_freq_J) != self.follows_length

    def test_every_rotary_scheme_takes_it(self, settings: Case) -> None:
        """Built by name, its parameters among the scheme's, and the scores finite far out."""
        for name, scheme in parts.shipped():
            if "rope_scaling" not in scheme:
                continue
            typed = positions.settings(scheme | {"rope_scaling": settings})
            head_dim = self._dims(settings)[0] // getattr(positions.scheme_class(typed.scheme), "features", 1)
            built = parts.randomise(positions.build(typed, AttentionShape(2, 1, head_dim, 24, 16))).eval()
            q, k, _ = parts.random_qkv(built, 3)
            pos = parts.start(3, 5000)
            assert torch.isfinite(parts.dense_scores(built, q, k, pos, pos, 5003)).all(), name
            assert {n for n, _ in built.named_parameters()} >= {
                f"rope_scaling.{n}" for n, _ in self._build(settings, self._dims(settings)[0]).named_parameters()
            }

    def test_the_words_of_transformers_lead_back(self, settings: Case) -> None:
        """What `to_transformers` writes is read as the same spectrum, by whichever frequencies own its rope_type: an
        export that is imported again is the model that it was. On a whole head and on half of it, unless refused.
        """
        typed = ROPE_SCALINGS.settings(settings)
        for dim, rotary_pct in ((dim, pct) for dim in self._dims(settings) for pct in (1.0, 0.5)):
            try:
                words = hugging_face.to_native(typed, dim, rotary_pct)
            except hugging_face.NotTheSame:
                continue
            scaling = dict(words.scaling or {})
            rotated = scaling.pop("partial_rotary_factor", rotary_pct)  # a separate key in config.json
            assert isinstance(rotated, float)
            read = hugging_face.rope_scaling(scaling, words.theta, words.max_positions or WINDOW, rotated)
            assert read[0] == rotary_pct
            back = ROPE_SCALINGS.settings(read[1]).build(dim)
            for length in _lengths(settings):
                ours, theirs = self._build(settings, dim)(length), back(length)
                # transformers may have words for an equal formula only, with another rounding
                torch.testing.assert_close(theirs.inv_freq_J, ours.inv_freq_J, rtol=1e-6, atol=0)
                assert abs(theirs.temperature - ours.temperature) <= 1e-6 * ours.temperature

    def test_its_words_are_for_some_settings(self) -> None:
        """`to_transformers` may refuse what theirs compute otherwise, not all there is."""
        name = self.rope_scaling
        if rope_scaling.settings_class(name).to_transformers is rope_scaling.RopeScaling.to_transformers:
            return
        for settings in self.settings().values():
            for dim in self._dims(settings):
                try:
                    hugging_face.to_native(ROPE_SCALINGS.settings(settings), dim, 1.0)
                except hugging_face.NotTheSame:
                    continue
                return
        raise AssertionError(f"to_transformers of {name} refuses every case")

    def problems(self, typed: RopeScaling) -> Iterable[tuple[str, str, str]]:
        """Return the problems with widths that lists may not fit."""
        return (problem for dim in (4, *DIMS) for problem in typed.problems(dim))

    def _dims(self, settings: Case) -> list[int]:
        """Return the widths that these settings fit."""
        typed = ROPE_SCALINGS.settings(settings)
        return [dim for dim in DIMS if not hasattr(typed, "problems") or not typed.problems(dim)]

    def _build(self, settings: Case, dim: int) -> nn.Module:
        module = ROPE_SCALINGS.settings(settings).build(dim)
        return parts.randomise(module).eval() if any(True for _ in module.parameters()) else module


def _lengths(settings: Case) -> tuple[int, ...]:
    trained = settings.get("original_seq_len", WINDOW)
    return 1, trained, trained + 1, 3 * trained, 64 * trained
