"""The keys of a config.json, each asked for by who understands it; the others are refused, in words."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coca_train.hub.harmless import CODE, HARMLESS, ONLY, is_whole
from coca_train.positions.hugging_face import is_positive
from coca_train.runtime import outside
from coca_train.runtime.errors import UserError

LIMIT = 4 << 20  # [bytes]
MOST = 2**31 - 1  # of anything counted: what a 32-bit index holds
MOST_LAYERS = 1 << 16


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises UserError E-IOP-03."""
    try:
        return outside.read_object(path, LIMIT)
    except (OSError, ValueError) as error:
        raise UserError(
            f"E-IOP-03 {path}: cannot be read ({getattr(error, 'strerror', None) or error}); a JSON object is needed. "
            "Fix: download or export the folder again"
        ) from None


def without_code(values: Any) -> Any:
    """The same JSON without the key CODE, at any depth."""
    if isinstance(values, dict):
        return {key: without_code(value) for key, value in values.items() if key != CODE}
    return [without_code(value) for value in values] if isinstance(values, list) else values


class Keys:
    """The keys of a config.json, each asked for by name; `finish` refuses those nobody asked for.

    A key that is missing is what its class takes then, the `default`. null is no value, as it is in transformers: where
    a class takes it, `optional` does, and elsewhere it is of a wrong type.

    ignore: keys known to change nothing, those of a section with a dot (rope_scaling.finetuned).
    """

    def __init__(self, where: Path, values: dict[str, Any], ignore: tuple[str, ...] = ()) -> None:
        self.where = where
        self._values = dict(values)
        self._ignored = set(ignore)
        self._asked: set[str] = set()

    def wrong(self, what: str, needed: str, fix: str = "import a model of this kind only") -> UserError:
        return UserError(f"E-IOP-04 {self.where} {what}; {needed}. Fix: {fix}")

    def has(self, key: str) -> bool:
        """Whether it is there, null or not."""
        self._asked.add(key)
        return key in self._values

    def take(self, key: str, default: Any = None) -> Any:
        """The value as it is, the default where it is missing."""
        self._asked.add(key)
        return self._values.get(key, default)

    def whole(self, key: str, default: int | None = None, most: int = MOST) -> int:
        """A whole number above 0."""
        value = self.take(key, default)
        if not is_whole(value) or not 0 < value <= most:
            raise self._untyped(key, value, f"a whole number from 1 to {most}")
        return value

    def layers(self, key: str, default: int | None = None) -> int:
        """How many layers there are, of which lists are made."""
        return self.whole(key, default, MOST_LAYERS)

    def optional(self, key: str, default: int | None = None) -> int | None:
        """The same, or null."""
        return None if self.take(key, default) is None else self.whole(key, default)

    def whole_or_missing(self, key: str, default: None = None) -> int | None:
        """The same, or missing, but not null."""
        return self.whole(key) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.take(key, default)
        if not is_positive(value):
            raise self._untyped(key, value, "a number above 0")
        return float(value)

    def share(self, key: str, default: float | None = None) -> float:
        """The same, at most 1."""
        if (value := self.number(key, default)) > 1:
            raise self._untyped(key, value, "a number above 0 and at most 1")
        return value

    def truth(self, key: str, default: bool) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self._untyped(key, value, "true or false")
        return value

    def word(self, key: str, allowed: Mapping[Any, Any], default: Any) -> Any:
        """One of the words of `allowed` (true and false are words too), translated."""
        value = self.take(key, default)
        if not isinstance(value, str | bool) or value not in allowed:
            raise self.wrong(f"{key}={value!r}", f"supported: {', '.join(map(str, allowed))}")
        return allowed[value]

    def mapping(self, key: str) -> dict[str, Any] | None:
        value = self.take(key)
        if value is not None and not isinstance(value, dict):
            raise self._untyped(key, value, "an object or null")
        return value

    def positive(self, what: str, value: Any) -> float:
        """A number above 0 from wherever it is said."""
        if not is_positive(value):
            raise self.wrong(f"{what}={value!r}", "a number above 0 is needed", "correct the file")
        return float(value)

    def ignored_in(self, section: str) -> frozenset[str]:
        """Keys of a section that are known to change nothing."""
        return frozenset(key.removeprefix(f"{section}.") for key in self._ignored if key.startswith(f"{section}."))

    def finish(self) -> None:
        """Refuse every key that says something and that nobody asked for."""
        left = {
            key: value
            for key, value in self._values.items()
            if key not in self._asked and key not in self._ignored and value is not None
        }
        if "quantization_config" in left:
            raise self.wrong("quantization_config", "weights in float32, bfloat16 or float16 are needed")
        for key in left.keys() & HARMLESS.keys():
            if not HARMLESS[key].matches(value := left.pop(key)):
                raise self._untyped(key, value, HARMLESS[key].words)
        for key in sorted(left.keys() & ONLY.keys()):
            if not ONLY[key].accepts(value := left.pop(key), self._values):
                raise self.wrong(f"{key}={value!r}", f"it would mean {ONLY[key].otherwise}")
        unknown = [key for key, value in left.items() if value is not False]
        if unknown:
            shown, names = ", ".join(f"{key}={left[key]!r}" for key in unknown)[:300], ",".join(unknown)
            raise self.wrong(
                shown,
                "it is not known here and may change what the model computes",
                f"when it changes nothing, ignore={names} (in a training start.ignore=[{names}])",
            )

    def _untyped(self, key: str, value: Any, needed: str) -> UserError:
        shown = repr(value)[:200]
        return UserError(
            f"E-IOP-03 {self.where} {key}={shown}: must be {needed}. Fix: download or export the folder again"
        )
