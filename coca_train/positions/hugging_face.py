"""Positions in the words of the `transformers` library: `rope_scaling`, `rope_parameters` and others of a config.json.

A scheme that its classes can compute says so by `Position.to_transformers`, a scaling by `RopeScaling.to_transformers`
and `from_transformers`. Several scalings may share a rope_type as long as one of them answers.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeGuard

from coca_train.positions import ROPE_SCALINGS, SchemeSettings, scheme_class
from coca_train.positions.rope_scaling import RopeScaling, settings_class, yarn_temperature
from coca_train.runtime.errors import UserError

SAME = 1e-6  # relative; factors are written with few digits
LEAST, MOST = 1e-30, 1e30  # of any number in a configuration: powers and quotients of these are still finite
NO_WORDS = ", which transformers' own classes do not have"


class NotTheSame(ValueError):
    """One side cannot express what the other computes; the message says why. unknown: keys of a section that would only
    have to be ignored, where they change nothing."""

    def __init__(self, reason: str, unknown: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.unknown = list(unknown)


def is_positive(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number above 0 that can be computed with. Python takes true and false for numbers too, JSON
    does not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and LEAST <= value <= MOST


class NativeScaling(NamedTuple):
    """A scaling as transformers describes it."""

    theta: float
    scaling: dict[str, object] | None = None  # what config.json calls rope_scaling; None: plain
    max_positions: int | None = None  # what max_position_embeddings must be; None: any
    min_positions: int = 0  # what it must be at least
    # The original length where it is also written outside of rope_scaling, the only place that versions before 5 read.
    original: int | None = None
    # A longer text is decoded otherwise than it is read: cached keys keep the angles of a shorter text. None: never.
    decodes_to: int | None = None
    caveats: tuple[str, ...] = ()  # who computes something else with these words, in sentences


class Rotation(NamedTuple):
    """What a layer rotates."""

    rotary_pct: float  # the rotated share of each head
    words: NativeScaling


class ScalingReader:
    """The keys of a rope_scaling, each taken by the code that understands it.

    max_positions: max_position_embeddings. rotary_pct: the rotated share of a head. ignore: keys known to change
    nothing. null means what it means in transformers: as if the key were missing where its classes read it by `get`,
    and no value elsewhere.
    """

    def __init__(
        self,
        values: dict[str, object],
        theta: float,
        max_positions: int,
        rotary_pct: float,
        ignore: frozenset[str] = frozenset(),
    ) -> None:
        self._left, self._ignored = dict(values), ignore
        older, newer = self._left.pop("type", None), self._left.pop("rope_type", None)
        if older is not None and newer is not None and older != newer:
            raise NotTheSame(f"type={older!r} and rope_type={newer!r}, which are one thing")
        said = [key for key in ("rope_type", "type") if key in values]
        rope_type = newer or older if said else "default"
        if not isinstance(rope_type, str):
            raise NotTheSame(f"{said[0]}={values[said[0]]!r}, which is no name of a scaling")
        self.rope_type = rope_type
        self.theta, self.max_positions, self.rotary_pct = float(theta), max_positions, rotary_pct

    def refuse_factor(self) -> None:
        """Accept a factor of 1 or none; refuse any other."""
        if (factor := self.number("factor", 1.0)) != 1:
            raise NotTheSame(f"factor={factor} with rope_type={self.rope_type}")

    def take_training_flag(self, key: str) -> None:
        """Take a key that concerns training alone and is true or false."""
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            raise NotTheSame(f"{key}={value!r}, which is neither true nor false")

    def finish(self) -> None:
        """Refuse the keys that were not taken."""
        left = {key: value for key, value in self._left.items() if value is not None and key not in self._ignored}
        if left:
            names = ", ".join(f"{key}={value!r}" for key, value in left.items())
            raise NotTheSame(f"{names} with rope_type={self.rope_type}", list(left))

    def has(self, key: str) -> bool:
        """Whether a key is present, null or not, and not taken yet."""
        return key in self._left

    def take(self, key: str, default: object = None) -> object:
        """Take a value as it is; the default where it is missing."""
        return self._left.pop(key, default)

    def number(self, key: str, default: float | None = None) -> float:
        """Take a number above 0."""
        value = self.take(key, default)
        if not is_positive(value):
            raise NotTheSame(f"{key}={value!r}, which is no number above 0")
        return float(value)

    def optional(self, key: str) -> float | None:
        """Take a number above 0; None where it is null or missing."""
        if self._left.get(key) is not None:
            return self.number(key)
        self.take(key)
        return None

    def numbers(self, key: str) -> list[float]:
        """Take a list of numbers above 0."""
        values = self.take(key)
        if not isinstance(values, list) or not all(map(is_positive, values)):
            raise NotTheSame(f"{key}={values!r}, which is no list of numbers above 0")
        return [float(value) for value in values]

    def original(self) -> int:
        """Take the length of the original weights [tokens]; where it is missing, that of these."""
        value = self.take("original_max_position_embeddings", self.max_positions)
        if not is_positive(value) or not isinstance(value, int):
            raise NotTheSame(f"original_max_position_embeddings={value!r}, which is no length")
        return value

    def single_length(self) -> int:
        """Take the original length, which must be that of these weights: for scalings that know one length only."""
        if (original := self.original()) != self.max_positions:
            raise NotTheSame(f"original_max_position_embeddings={original} with rope_type={self.rope_type}")
        return original

    def factor(self, original: int | None = None) -> float:
        """Take the extension factor; where it is null and there is an original length, compute it from both lengths."""
        value = self.optional("factor")
        if value is None and original is not None and original != self.max_positions:
            value = self.max_positions / original
        if value is None or value < 1:
            raise NotTheSame(f"factor={value}, which is no number of at least 1")
        return value


def rotation(settings: SchemeSettings, head_dim: int) -> Rotation | None:
    """Return what layers with these position settings rotate; None: nothing. Raises NotTheSame where transformers'
    classes compute something else."""
    return scheme_class(settings.scheme).to_transformers(settings, head_dim)


def rope_scaling(
    values: dict[str, object],
    theta: float,
    max_positions: int,
    rotary_pct: float,
    ignore: frozenset[str] = frozenset(),
) -> tuple[float, dict[str, object]]:
    """Return the rotated share of a head and our `rope_scaling` section for a rope_scaling of transformers (empty:
    plain).

    Raises NotTheSame, and UserError E-IOP-22 where several modules take it: the order of their names must not decide
    what a model computes.
    """
    scalings = {name: each for name in ROPE_SCALINGS.names() if (each := settings_class(name)).ROPE_TYPE is not None}
    rope_type = ScalingReader(values, theta, max_positions, rotary_pct).rope_type
    answers: dict[str, tuple[float, dict[str, object]]] = {}
    refusals: dict[str, NotTheSame] = {}
    for name, of_type in scalings.items():
        scaling = ScalingReader(values, theta, max_positions, rotary_pct, ignore)
        try:
            section = of_type.from_transformers(scaling) if rope_type == of_type.ROPE_TYPE else None
            if section is not None:
                scaling.finish()
                answers[name] = scaling.rotary_pct, {"name": name, **section}
        except NotTheSame as error:
            refusals[str(error)] = error
    if not answers:
        known = ", ".join(sorted({str(of_type.ROPE_TYPE) for of_type in scalings.values()}))
        unknown = [key for error in refusals.values() for key in error.unknown]
        raise NotTheSame("; ".join(refusals) or f"rope_type={rope_type}; known are {known}", dict.fromkeys(unknown))
    if len(answers) > 1:
        owners = " and ".join(f"{name} ({ROPE_SCALINGS.source(name)})" for name in answers)
        raise UserError(
            f"E-IOP-22 rope_type={rope_type}: the frequencies {owners} take it, and only one may. Fix: let "
            "from_transformers of the one that you added return None for what is the other's, or leave out its "
            "ROPE_TYPE and from_transformers"
        )
    (answer,) = answers.values()
    return answer


def to_native(settings: RopeScaling, rotary_dim: int, rotary_pct: float) -> NativeScaling:
    """Return the rope_scaling of transformers for our frequencies. Raises NotTheSame where its classes have none for
    them."""
    said = settings.to_transformers(rotary_dim, rotary_pct)
    if said is None:
        raise NotTheSame(f"frequencies {settings.name}{NO_WORDS}")
    return said


class Extended(Protocol):
    """Settings of a scaling with two lengths."""

    @property
    def factor(self) -> float: ...
    @property
    def original_seq_len(self) -> int: ...


class ExtendedRamp(Extended, Protocol):
    """Those of YaRN's ramp, for one factor."""

    @property
    def name(self) -> str: ...
    @property
    def theta(self) -> float: ...
    @property
    def convention(self) -> str: ...
    @property
    def beta_fast(self) -> float: ...
    @property
    def beta_slow(self) -> float: ...


def length_keys(settings: Extended) -> dict[str, object]:
    """Return the keys that scalings with two lengths share."""
    return {"factor": settings.factor, "original_max_position_embeddings": settings.original_seq_len}


def extended_length(settings: Extended) -> int:
    """Return the length that a scaling with two lengths extends to, s·L [tokens]."""
    return round(settings.factor * settings.original_seq_len)


def read_yarn(scaling: ScalingReader) -> tuple[dict[str, object], float]:
    """Return our section of YaRN's ramp, and the temperature: as stated, from two mscales, or YaRN's own."""
    original = scaling.original()
    if not scaling.has("factor"):
        raise NotTheSame("no factor, which may be null and not missing")
    factor = scaling.factor(original)
    truncate = scaling.take("truncate", True)
    if not isinstance(truncate, bool):
        raise NotTheSame(f"truncate={truncate!r}, which is neither true nor false")
    # Where the authors' own code has it, it decides how dynamic scalings begin; this one is static.
    scaling.take_training_flag("finetuned")
    fast, slow = scaling.optional("beta_fast") or 32.0, scaling.optional("beta_slow") or 1.0
    if fast <= slow:
        raise NotTheSame(f"beta_fast={fast:g}, which is not above beta_slow={slow:g}")
    numerator, denominator = scaling.optional("mscale"), scaling.optional("mscale_all_dim")
    temperature = scaling.optional("attention_factor")
    if temperature is None and numerator and denominator:
        temperature = (0.1 * numerator * math.log(factor) + 1) / (0.1 * denominator * math.log(factor) + 1)
    section: dict[str, object] = {"theta": scaling.theta, "factor": factor, "original_seq_len": original}
    section |= {"beta_fast": fast, "beta_slow": slow, "convention": "code" if truncate else "unrounded"}
    return section, yarn_temperature(factor) if temperature is None else temperature


def write_yarn(settings: ExtendedRamp, temperature: float) -> NativeScaling:
    """Return the ramp of YaRN's code as transformers describes it.

    max_position_embeddings is s·L to the token: transformers 4.51 to 4.55 divide it by the original length to get s.
    """
    if settings.convention not in ("code", "indices", "unrounded"):
        raise NotTheSame(f"frequencies {settings.name} (convention {settings.convention}){NO_WORDS}")
    scaling = {"rope_type": "yarn", **length_keys(settings), "attention_factor": temperature}
    scaling |= {"beta_fast": settings.beta_fast, "beta_slow": settings.beta_slow}
    scaling |= {"truncate": False} if settings.convention == "unrounded" else {}
    longest = extended_length(settings)
    caveats = ["transformers before 4.51 take max_position_embeddings for the original length, so that YaRN's ramp is"
               " another one: use 4.51 or newer"]  # fmt: skip
    if longest != settings.factor * settings.original_seq_len:
        caveats.append(
            f"transformers 4.51 to 4.55 take the factor from both lengths: {longest / settings.original_seq_len:.6g}, "
            f"where it is {settings.factor:.6g}"
        )
    if not math.isclose(temperature, usual := yarn_temperature(settings.factor), rel_tol=SAME):
        caveats.append(
            f"vLLM (vllm#48351, 0.25), mlx-lm (mlx-lm#1507) and llama.cpp do not read attention_factor={temperature:g} "
            f"and use {usual:.4g}, YaRN's, so that all scores are {(usual / temperature) ** 2:.2f} times as large"
        )
    return NativeScaling(settings.theta, scaling, max_positions=longest, caveats=tuple(caveats))
