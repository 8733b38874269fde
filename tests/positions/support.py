"""Settings of schemes and of every scaling, as these tests put them together."""

from coca_train.positions import ROPE_SCALINGS
from coca_train.testing.parts import TRAINED

PLAIN = {"name": "plain", "theta": 10000.0}


def scaling(name, convention="paper", **changes):
    """Settings of one frequency choice at the size of these tests (ramp ends that cut a 16-wide head in three)."""
    fields = {
        "theta": 100.0,
        "factor": 2.0 if name == "longrope" else 4.0,  # its temperature would be great for so small a window
        "alpha": 2.0,
        "original_seq_len": TRAINED,
        "beta_fast": 1.5,
        "beta_slow": 0.1,
        "convention": convention,
        "low_freq_factor": 0.1,
        "high_freq_factor": 1.5,
        "max_factor": 4,
        "param_factor": 1,
        "ode_step": 0.25,
        "share": 0.6,
        "short_factor": None,  # lists have the length of one head: tests/positions/test_longrope.py
        "long_factor": None,
        "temperature": None,
    }
    wanted = ROPE_SCALINGS.module(name).Settings.__pydantic_fields__
    return {"name": name} | {key: value for key, value in fields.items() if key in wanted} | changes


def rope(rope_scaling=PLAIN, rotary_pct=1.0):
    return {"scheme": "rope", "rotary_pct": rotary_pct, "rope_scaling": rope_scaling}


def coca(rope_scaling=PLAIN, variant="slack", t_width="half", rotary_pct=1.0):
    fixed = {"scheme": "coca", "rotary_pct": rotary_pct}
    return fixed | {"variant": variant, "t_width": t_width, "rope_scaling": rope_scaling}


def alibi(fold="never"):
    return {"scheme": "alibi", "fold": fold}


def label(settings):
    """A readable test id."""
    words = [str(value) for key, value in settings.items() if key not in ("rope_scaling", "name")]
    inner = settings.get("rope_scaling", settings)
    return "-".join([*words, inner.get("name", ""), inner.get("convention", "")]).strip("-")
