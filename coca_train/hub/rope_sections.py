"""The rotary frequencies of a config.json: in a section of two names, and in keys outside of it."""

from typing import Any, NamedTuple

from coca_train.hub.keys import Keys
from coca_train.positions import hugging_face
from coca_train.positions.hugging_face import NotTheSame

SECTIONS = ("rope_scaling", "rope_parameters")  # up to transformers 4, and since 5, whose classes prefer the older one
THETA, SHARE = "rope_theta", "partial_rotary_factor"
APART = (THETA, SHARE)  # what may be said in a section and outside of it
CORRECT = "correct the file, and keep what the model was trained with"


class Number(NamedTuple):
    """A number that may be said outside of the section: its key there, and what the class takes without it."""

    key: str
    default: float


class Outside(NamedTuple):
    """What a family has outside of the section."""

    theta: Number
    share: Number  # the rotated part of a head
    authors: str = ""  # constants of YaRN in its authors' own code for this family, where they are not its class's


def rotary_frequencies(keys: Keys, outside: Outside, max_positions: int) -> tuple[float, dict[str, Any]]:
    """The rotated share of a head and our frequencies, from wherever a version of transformers wrote them.

    Of two sections its classes read one and drop the other without a word, and of two keys too: what is said twice has
    to be the same.
    """
    name, section = _section(keys)
    theta = _said(keys, section, name, THETA, outside.theta)
    rotary_pct = _said(keys, section, name, SHARE, outside.share)
    if theta <= 1:
        raise keys.wrong(f"{outside.theta.key}={theta:g}", "a base above 1 is needed")
    scaling = {key: value for key, value in section.items() if key not in APART}
    length = "original_max_position_embeddings"  # where Phi-3 has it, and then it wins
    if (original := keys.optional(length)) and scaling.setdefault(length, original) != original:
        raise keys.wrong(f"{length}={original}, {name}.{length}={scaling[length]!r}", "they are one thing", CORRECT)
    unsaid = [key for key in ("beta_fast", "beta_slow", "attention_factor") if key not in scaling]
    if outside.authors and "finetuned" in scaling.keys() - keys.ignored_in(name) and unsaid:
        raise keys.wrong(
            f"{name}.finetuned={scaling['finetuned']!r}, which the YaRN authors' releases have",
            f"their own code computes with {outside.authors}, and {', '.join(unsaid)} are not said in {name}",
            f"write them there; or ignore={name}.finetuned, for what the class of transformers makes of the file",
        )
    try:
        return hugging_face.frequencies(scaling, theta, max_positions, rotary_pct, keys.ignored_in(name))
    except NotTheSame as error:
        names = ",".join(f"{name}.{key}" for key in error.unknown)
        fix = f"when {names} changes nothing, ignore={names}" if names else "import a model of this kind only"
        raise keys.wrong(f"{name}: {error}", "this is not what we compute", fix) from None


def _section(keys: Keys) -> tuple[str, dict[str, Any]]:
    """rope_scaling, or rope_parameters, and its name. UserError E-IOP-04 where both are there and differ."""
    (older, one), (newer, other) = ((name, keys.mapping(name) or {}) for name in SECTIONS)
    if one and other:
        same, also = (_comparable(section) for section in (one, other))
        differing = sorted(key for key in same.keys() | also.keys() if same.get(key) != also.get(key))
        if differing:
            both = "; ".join(f"{key} is {same.get(key)!r} and {also.get(key)!r}" for key in differing)[:300]
            raise keys.wrong(f"{older} and {newer} differ: {both}", "they are one thing, and one is needed", CORRECT)
    return (older, one) if one else (newer, other)


def _comparable(section: dict[str, Any]) -> dict[str, Any]:
    """A section without what is said outside of it as well, and under the names of today."""
    kept = {key: value for key, value in section.items() if key not in (*APART, "type") and value is not None}
    return {"rope_type": section.get("type") or "default", **kept}


def _said(keys: Keys, section: dict[str, Any], name: str, key: str, outside: Number) -> float:
    """The number that a class reads: that of the section, else the one outside of it, else its default. UserError
    E-IOP-04 where another place says something else."""
    places = {f"{part}.{key}": (keys.mapping(part) or {}).get(key) for part in SECTIONS}
    places |= {each: keys.take(each) for each in dict.fromkeys((outside.key, key)) if keys.has(each)}
    read = f"{name}.{key}" if key in section else outside.key
    value = outside.default
    if read in places and not (read == key == SHARE and places[read] is None):  # its class passes over null there alone
        value = keys.positive(read, places[read])
    others = {place: keys.positive(place, other) for place, other in places.items() if other is not None}
    differing = [f"{place}={other:g}" for place, other in others.items() if other != value]
    if differing:
        raise keys.wrong(f"{', '.join(differing)}, and its class reads {key}={value:g}", "they are one thing", CORRECT)
    return value
