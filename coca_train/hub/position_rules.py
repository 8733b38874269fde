"""The positions of a family of transformers, as its config.json says them, both ways."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from coca_train.hub.architecture import Architecture
from coca_train.hub.config_keys import COUNT, COUNT_OR_NULL, NUMBER, OBJECT_OR_NULL, Json, Keys
from coca_train.hub.layer_rules import FULL, SLIDING, has_window
from coca_train.positions import SchemeSettings, hugging_face
from coca_train.positions.hugging_face import NotTheSame, rotation
from coca_train.positions.schemes import alibi, learned, rope

# Names of the rotary section up to transformers 4, and since 5, whose classes prefer the older one.
ROPE_SECTIONS = ("rope_scaling", "rope_parameters")
THETA, SHARE = "rope_theta", "partial_rotary_factor"  # keys inside of the section or outside
ORIGINAL_LENGTH = "original_max_position_embeddings"
CORRECT = "correct the file, and keep what the model was trained with"


class Positions(NamedTuple):
    """The positions of a model in our sections."""

    seq_len: int  # trained window [tokens]
    position: Json
    of_windows: Json | None = None  # what those of layers with a window have instead; None: nothing


class PositionRule(ABC):
    """The positions of a family."""

    scaled_since = ""  # the first version of transformers whose class reads rope_scaling; "": all that matter
    counted = False  # its class counts tokens from 0, and takes no positions

    @abstractmethod
    def read(self, keys: Keys) -> Positions:
        """Return our sections. Raises UserError E-IOP-03, E-IOP-04."""

    @abstractmethod
    def write(self, architecture: Architecture) -> Json:
        """Return keys of config.json. Raises NotTheSame where its class has no such positions."""

    def caveats(self, architecture: Architecture) -> list[str]:
        """Return a sentence on each case where its class computes something else than the run."""
        return []


@dataclass(frozen=True, kw_only=True)
class RopeRule(PositionRule):
    """RoPE in all layers that have positions. Numbers are the defaults of the class for missing keys."""

    theta_key: str = THETA
    theta: float = 10000.0
    share_key: str = SHARE  # of the rotated share of a head
    share: float = 1.0
    whole_head: bool = True  # it always rotates the whole head
    max_positions: int = 2048
    scaled_since: str = ""
    scalings: tuple[str, ...] = ()  # the types that its class reads; (): all
    yarn_authors: str = ""  # constants of YaRN in its authors' code for this family, where its class has others

    def read(self, keys: Keys) -> Positions:
        seq_len = keys.read("max_position_embeddings", COUNT, self.max_positions)
        name, section = _rope_section(keys)
        theta = _rope_number(keys, section, name, THETA, self.theta_key, self.theta)
        rotary_pct = _rope_number(keys, section, name, SHARE, self.share_key, self.share)
        return Positions(seq_len, self._section(keys, name, section, theta, rotary_pct, seq_len))

    def _section(
        self, keys: Keys, name: str, section: Json, theta: float, rotary_pct: float, seq_len: int
    ) -> dict[str, object]:
        """Return our `position` section for a rotary section. name: where it is in config.json."""
        if theta <= 1:
            raise keys.wrong(f"{self.theta_key}={theta:g}", "a base above 1 is needed")
        scaling = {key: value for key, value in section.items() if key not in (THETA, SHARE)}
        # Where Phi-3 has it outside of the section, and then that one wins; plain frequencies have one length only.
        scales = (scaling.get("rope_type") or scaling.get("type")) not in (None, "default")
        original = keys.read(ORIGINAL_LENGTH, COUNT_OR_NULL)
        if scales and original and scaling.setdefault(ORIGINAL_LENGTH, original) != original:
            both = f"{ORIGINAL_LENGTH}={original}, {name}.{ORIGINAL_LENGTH}={scaling[ORIGINAL_LENGTH]!r}"
            raise keys.wrong(both, "they are one thing", CORRECT)
        unsaid = [key for key in ("beta_fast", "beta_slow", "attention_factor") if key not in scaling]
        if self.yarn_authors and "finetuned" in scaling.keys() - keys.ignored_in(name) and unsaid:
            raise keys.wrong(
                f"{name}.finetuned={scaling['finetuned']!r}, which the YaRN authors' releases have",
                f"their own code computes with {self.yarn_authors}, and {', '.join(unsaid)} are not said in {name}",
                f"write them there; or ignore={name}.finetuned, for what the class of transformers makes of the file",
            )
        try:
            rotary_pct, rope_scaling = hugging_face.rope_scaling(
                scaling, theta, seq_len, rotary_pct, keys.ignored_in(name)
            )
        except NotTheSame as error:
            names = ",".join(f"{name}.{key}" for key in error.unknown)
            fix = f"when {names} changes nothing, ignore={names}" if names else "import a model of this kind only"
            raise keys.wrong(f"{name}: {error}", "this is not what we compute", fix) from None
        if self.whole_head and rotary_pct != 1:
            raise keys.wrong(f"{SHARE}={rotary_pct:g}", "its class rotates the whole head")
        return rope.from_transformers(rotary_pct, rope_scaling)

    def write(self, architecture: Architecture) -> Json:
        """Return the keys of released models (rope_theta, rope_scaling), which old and new versions read."""
        rotated = rotation(architecture.position, architecture.head_dim)
        if rotated is None:
            raise NotTheSame(f"position scheme {architecture.position.scheme}")
        if self.whole_head and rotated.rotary_pct != 1:
            raise NotTheSame(f"rotary_pct {rotated.rotary_pct:g}")
        words = rotated.words
        kind = (words.scaling or {}).get("rope_type")
        if self.scalings and kind not in (None, *self.scalings):
            raise NotTheSame(f"rope_type {kind}")
        # p-RoPE's share of pairs is in rope_scaling under the name of rotary_pct's key: only one of both is written.
        share_is_said = self.whole_head or SHARE in (words.scaling or {})
        return {
            "max_position_embeddings": written_length(architecture, words),
            **({} if words.original is None else {ORIGINAL_LENGTH: words.original}),
            "rope_scaling": words.scaling,
            self.theta_key: words.theta,
            **({} if share_is_said else {self.share_key: rotated.rotary_pct}),
        }


def written_length(architecture: Architecture, words: hugging_face.NativeScaling) -> int:
    """Return the max_position_embeddings of a class with RoPE."""
    return words.max_positions or max(architecture.seq_len, words.min_positions)


@dataclass(frozen=True, kw_only=True)
class TwoRopesRule(RopeRule):
    """RoPE with frequencies of their own in layers with a window (Gemma 3, OLMo 3).

    Since transformers 5 the section has a part for each of the two; before, rope_scaling and rope_theta were those of
    the other layers.
    """

    of_windows: float  # theta in layers with a window
    of_windows_key: str = ""  # its key outside of the section; "": older versions had one theta

    def read(self, keys: Keys) -> Positions:
        sections = {name: keys.read(name, OBJECT_OR_NULL) or {} for name in ROPE_SECTIONS}
        nested = [name for name, section in sections.items() if section.keys() & {FULL, SLIDING}]
        theta = keys.read(self.of_windows_key, NUMBER, self.of_windows) if self.of_windows_key else self.of_windows
        if not nested:
            if newer := sections[ROPE_SECTIONS[1]]:
                raise keys.wrong(f"{ROPE_SECTIONS[1]}={newer!r}"[:300], f"parts for {FULL} and {SLIDING} are needed")
            older = sections[ROPE_SECTIONS[0]]
            if "rope_type" not in older and older.get("type") not in (None, "default"):
                raise keys.wrong(
                    f"{ROPE_SECTIONS[0]}.type={older['type']!r} without rope_type",
                    "its class reads the one or the other, as its version has it",
                    f"write {ROPE_SECTIONS[0]}.rope_type",
                )
            whole = super().read(keys)
            rotary_theta = _theta(whole.position)
            if not self.of_windows_key and rotary_theta != theta:
                raise keys.wrong(
                    f"rope_theta={rotary_theta:g} without a part for {SLIDING}",
                    f"versions of transformers take it or {theta:g} for layers with a window",
                    f"write rope_parameters with {FULL} and {SLIDING}",
                )
            return whole._replace(of_windows={"rope_scaling": {"name": "plain", "theta": theta}})
        others = [name for name, section in sections.items() if section and name not in nested]
        others += [key for key in (self.theta_key, self.of_windows_key) if key and keys.has(key)]
        if others or len(nested) > 1 or sections[nested[0]].keys() != {FULL, SLIDING}:
            raise keys.wrong(f"{', '.join((*nested, *others))}", f"one section with {FULL} and {SLIDING} is needed")
        seq_len, (name,) = keys.read("max_position_embeddings", COUNT, self.max_positions), nested
        read: dict[str, Json] = {}
        for part, default in ((FULL, self.theta), (SLIDING, self.of_windows)):
            section = sections[name][part]
            if not isinstance(section, Mapping):
                raise keys.wrong(f"{name}.{part}={section!r}", "an object is needed", CORRECT)
            of_part = keys.positive(f"{name}.{part}.{THETA}", section.get(THETA, default))
            share = keys.positive(f"{name}.{part}.{SHARE}", section.get(SHARE, self.share))
            read[part] = self._section(keys, f"{name}.{part}", dict(section), of_part, share, seq_len)
        return Positions(seq_len, read[FULL], {"rope_scaling": read[SLIDING]["rope_scaling"]})

    def write(self, architecture: Architecture) -> Json:
        keys = super().write(architecture)
        local = self._position_of_windows(architecture)
        words = None if local is None else rotation(local, architecture.head_dim)
        theta = self.of_windows if words is None else words.words.theta
        if local is not None and (words is None or words.rotary_pct != 1):
            raise NotTheSame(f"position scheme {local.scheme} in layers with a window, which rotate whole heads")
        if words is not None and words.words.scaling is not None:
            raise NotTheSame("scaled frequencies in layers with a window")
        if self.of_windows_key:
            return keys | {self.of_windows_key: theta}
        if keys[self.theta_key] == theta == self.of_windows:
            return keys  # in the words of all versions
        full, whole = keys.pop("rope_scaling"), keys.pop(self.theta_key)
        scaled = {"rope_type": "default"} if full is None else full
        assert isinstance(scaled, dict)
        sections = {FULL: {**scaled, THETA: whole}, SLIDING: {"rope_type": "default", THETA: theta}}
        return keys | {"rope_parameters": sections}

    def caveats(self, architecture: Architecture) -> list[str]:
        if ROPE_SECTIONS[1] not in self.write(architecture):
            return []
        return ["transformers before 5 have one theta in all layers of this class, of its own: use a newer one"]

    def _position_of_windows(self, architecture: Architecture) -> SchemeSettings | None:
        """Return the settings of layers with a window; None: there are none. Raises NotTheSame."""
        found = [kind.position for kind in architecture.layer_types if has_window(kind)]
        whole = [kind.position for kind in architecture.layer_types if not has_window(kind)]
        if any(each != architecture.position for each in whole) or any(each != found[0] for each in found):
            raise NotTheSame("layers of one kind with positions of several")
        return found[0] if found else None


def _theta(position: Mapping[str, object]) -> float:
    scaling = position["rope_scaling"]
    assert isinstance(scaling, dict)
    return scaling["theta"]


@dataclass(frozen=True)
class LearnedRule(PositionRule):
    """A learned vector for each position, as many as this key says."""

    key: str
    max_len: int = 0  # where the key is missing [tokens]
    also: str = ""  # its other name, which llama.cpp's converter reads

    def read(self, keys: Keys) -> Positions:
        max_len = keys.read(self.key, COUNT, self.max_len)
        return Positions(max_len, {"scheme": "learned", "max_len": max_len})

    def write(self, architecture: Architecture) -> Json:
        position = architecture.position
        if not isinstance(position, learned.Settings):
            raise NotTheSame(f"position scheme {position.scheme}")
        return {key: position.max_len for key in (self.key, self.also) if key}


@dataclass(frozen=True)
class AlibiRule(PositionRule):
    """ALiBi in every model of the family."""

    counted = True

    key: str  # of the trained window
    seq_len: int = 2048  # where the key is missing [tokens]
    ends: bool = False  # its class has no positions beyond that window

    def read(self, keys: Keys) -> Positions:
        return Positions(keys.read(self.key, COUNT, self.seq_len), {"scheme": "alibi", "fold": "auto"})

    def write(self, architecture: Architecture) -> Json:
        if not isinstance(architecture.position, alibi.Settings):
            raise NotTheSame(f"position scheme {architecture.position.scheme}")
        return {self.key: architecture.seq_len}

    def caveats(self, architecture: Architecture) -> list[str]:
        if not self.ends:
            return []
        return [f"its class fails beyond {self.key}={architecture.seq_len} tokens: write a longer one for longer texts"]


def _rope_section(keys: Keys) -> tuple[str, Json]:
    """Return the name and the values of the rotary section. Raises UserError E-IOP-04 where two differ."""
    (older, one), (newer, other) = ((name, keys.read(name, OBJECT_OR_NULL) or {}) for name in ROPE_SECTIONS)
    if one and other:
        same, also = (_comparable(section) for section in (one, other))
        differing = sorted(key for key in same.keys() | also.keys() if same.get(key) != also.get(key))
        if differing:
            both = "; ".join(f"{key} is {same.get(key)!r} and {also.get(key)!r}" for key in differing)[:300]
            raise keys.wrong(f"{older} and {newer} differ: {both}", "they are one thing, and one is needed", CORRECT)
    return (older, one) if one else (newer, other)


def _comparable(section: Json) -> Json:
    """Return a section without keys that may be outside of it, with current names."""
    kept = {key: value for key, value in section.items() if key not in (THETA, SHARE, "type") and value is not None}
    return {"rope_type": section.get("type") or "default", **kept}


def _rope_number(keys: Keys, section: Json, section_name: str, key: str, outside: str, default: float) -> float:
    """Return the number that a class reads: that of the section, else the one outside of it, else its default.

    Of two sections, or two keys, its classes silently ignore one: both must be the same. But transformers 5.4 writes
    the default share outside of a section that has another one (StableLM). outside: the family's name of the key
    outside of the section. Raises UserError E-IOP-04 where another place has another value.
    """
    places = {f"{name}.{key}": (keys.read(name, OBJECT_OR_NULL) or {}).get(key) for name in ROPE_SECTIONS}
    places |= {name: keys.take(name) for name in dict.fromkeys((outside, key)) if keys.has(name)}
    read, value = f"{section_name}.{key}" if key in section else outside, default
    if read in places and not (read == key == SHARE and places[read] is None):  # its class ignores null there alone
        value = keys.positive(read, places[read])
    if key == SHARE and read == f"{ROPE_SECTIONS[1]}.{SHARE}":
        places = {place: other for place, other in places.items() if "." in place or other != default}
    others = {place: keys.positive(place, other) for place, other in places.items() if other is not None}
    differing = [f"{place}={other:g}" for place, other in others.items() if other != value]
    if differing:
        raise keys.wrong(f"{', '.join(differing)}, and its class reads {key}={value:g}", "they are one thing", CORRECT)
    return value
