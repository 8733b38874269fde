"""Rotary scalings in the words of `transformers` (rope_scaling, rope_parameters) and in ours (position/frequencies).

Both directions refuse what the other side would compute differently. transformers' "yarn" is the authors' code
(our convention=code), its "dynamic" is our dynamic_ntk with alpha = factor, its "llama3" is NTK-by-parts over turns.
"""

import math
from typing import Any, NamedTuple

from coca_train.positions.frequencies import _shared

SAME = 1e-6  # relative; factors are written with few digits


class NotTheSame(ValueError):
    """Why one side cannot say what the other computes, in words."""


class Written(NamedTuple):
    """A scaling in transformers' words."""

    theta: float
    scaling: dict[str, Any] | None  # what config.json calls rope_scaling; None: plain
    max_positions: int | None  # what max_position_embeddings must be; None: any


def frequencies(scaling: dict[str, Any] | None, theta: float, max_positions: int, rotary_pct: float) -> dict[str, Any]:
    """Our `frequencies` section for a rope_scaling (None: plain). Raises NotTheSame."""
    scaling = dict(scaling or {})
    kind = _kind(scaling)
    plain = {"theta": float(theta)}
    original = scaling.pop("original_max_position_embeddings", None)
    factor = scaling.pop("factor", None)
    if kind in ("yarn", "llama3"):
        plain["original_seq_len"] = _length(original or max_positions)
        if factor is None and original:
            factor = max_positions / original
    elif original not in (None, max_positions):
        raise NotTheSame(f"original_max_position_embeddings={original} with rope_type={kind}")
    if kind != "default":
        plain["factor"] = _factor(factor)
    elif factor not in (None, 1, 1.0):
        raise NotTheSame(f"factor={factor} with rope_type=default")
    found = {
        "default": lambda: {"name": "plain", **plain},
        "linear": lambda: {"name": "linear", **plain},
        "dynamic": lambda: _dynamic(plain, max_positions),
        "llama3": lambda: _llama3(plain, scaling),
        "yarn": lambda: _yarn(plain, scaling, rotary_pct),
    }[kind]()
    left = {key: value for key, value in scaling.items() if value is not None}
    if left:
        raise NotTheSame(f"{', '.join(f'{key}={value}' for key, value in left.items())} with rope_type={kind}")
    return found


def _kind(scaling: dict[str, Any]) -> str:
    older = scaling.pop("type", None)
    kind = scaling.pop("rope_type", None) or older or "default"
    if kind not in ("default", "linear", "dynamic", "yarn", "llama3"):
        raise NotTheSame(f"rope_type={kind}; known are default, linear, dynamic, yarn and llama3")
    return kind


def _factor(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < math.inf:
        raise NotTheSame(f"factor={value}, which is no number of at least 1")
    return float(value)


def _length(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise NotTheSame(f"original_max_position_embeddings={value}, which is no length")
    return value


def _number(scaling: dict[str, Any], key: str, default: float | None) -> float:
    value = scaling.pop(key, None)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise NotTheSame(f"{key}={value}, which is no number above 0")
    return float(value)


def _dynamic(plain: dict[str, Any], max_positions: int) -> dict[str, Any]:
    factor = plain.pop("factor")
    return {"name": "dynamic_ntk", **plain, "alpha": factor, "original_seq_len": max_positions}


def _llama3(plain: dict[str, Any], scaling: dict[str, Any]) -> dict[str, Any]:
    low, high = (_number(scaling, f"{which}_freq_factor", None) for which in ("low", "high"))
    if high <= low:
        raise NotTheSame(f"high_freq_factor={high:g}, which is not above low_freq_factor={low:g}")
    return {"name": "llama3", **plain, "low_freq_factor": low, "high_freq_factor": high}


def _yarn(plain: dict[str, Any], scaling: dict[str, Any], rotary_pct: float) -> dict[str, Any]:
    if scaling.pop("truncate", None) is False:
        raise NotTheSame("truncate=false, a ramp between ends that are not rounded")
    ramp = {"beta_fast": _number(scaling, "beta_fast", 32.0), "beta_slow": _number(scaling, "beta_slow", 1.0)}
    if ramp["beta_fast"] <= ramp["beta_slow"]:
        raise NotTheSame(f"beta_fast={ramp['beta_fast']:g}, which is not above beta_slow={ramp['beta_slow']:g}")
    temperature = _temperature(plain["factor"], scaling)
    section = {**plain, **ramp, "convention": "code"}
    if math.isclose(temperature, 1.0, rel_tol=SAME):
        return {"name": "ntk_by_parts", **section}
    if not math.isclose(temperature, _shared.yarn_temperature(plain["factor"]), rel_tol=SAME):
        raise NotTheSame(f"an attention factor of {temperature:g}, where YaRN's is 0.1 ln(factor) + 1")
    if rotary_pct < 1:
        raise NotTheSame("yarn's temperature on a part of the head only (partial rotation)")
    return {"name": "yarn", **section}


def _temperature(factor: float, scaling: dict[str, Any]) -> float:
    """transformers' attention_factor: as given, or the ratio of the two mscales, or YaRN's own."""
    numerator, denominator = scaling.pop("mscale", None), scaling.pop("mscale_all_dim", None)
    given = scaling.pop("attention_factor", None)
    if given is not None:
        return float(given)
    if numerator and denominator:
        return (0.1 * numerator * math.log(factor) + 1) / (0.1 * denominator * math.log(factor) + 1)
    return _shared.yarn_temperature(factor)


def written(settings: Any, rotary_dim: int, rotary_pct: float) -> Written:
    """The rope_scaling of our frequencies. Raises NotTheSame where native classes have no word for them."""
    theta = settings.theta
    if settings.name == "plain":
        return Written(theta, None, None)
    if settings.name == "ntk":
        return Written(_shared.ntk_theta(theta, settings.factor, rotary_dim), None, None)
    if settings.name == "linear":
        return Written(theta, {"rope_type": "linear", "factor": settings.factor}, None)
    if settings.name == "dynamic_ntk":
        return Written(theta, {"rope_type": "dynamic", "factor": settings.alpha}, settings.original_seq_len)
    if settings.name == "llama3":
        return Written(theta, _llama3_words(settings, settings.low_freq_factor, settings.high_freq_factor), None)
    if settings.name == "ntk_by_parts" and settings.convention == "paper":
        return Written(theta, _llama3_words(settings, settings.beta_slow, settings.beta_fast), None)
    if settings.name in ("yarn", "ntk_by_parts") and settings.convention == "code":
        if settings.name == "yarn" and rotary_pct < 1:
            raise NotTheSame(
                "yarn with a partial rotation: transformers leaves the rest of the head without temperature"
            )
        temperature = _shared.yarn_temperature(settings.factor) if settings.name == "yarn" else 1.0
        scaling = {"rope_type": "yarn", **_extended(settings), "attention_factor": temperature}
        return Written(theta, scaling | {"beta_fast": settings.beta_fast, "beta_slow": settings.beta_slow}, None)
    convention = f" (convention {settings.convention})" if hasattr(settings, "convention") else ""
    raise NotTheSame(f"frequencies {settings.name}{convention}, which transformers' own classes do not have")


def _extended(settings: Any) -> dict[str, Any]:
    return {"factor": settings.factor, "original_max_position_embeddings": settings.original_seq_len}


def _llama3_words(settings: Any, low: float, high: float) -> dict[str, Any]:
    return {"rope_type": "llama3", **_extended(settings), "low_freq_factor": low, "high_freq_factor": high}
