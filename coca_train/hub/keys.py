"""The keys of a config.json, each asked for by who understands it; the others are refused, in words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coca_train.positions.hugging_face import is_positive
from coca_train.runtime import outside
from coca_train.runtime.errors import UserError

LIMIT = 4 << 20  # [bytes]
CODE = "auto_map"  # the key by which a folder names code of its own; never followed

# Nothing of the mathematics of a forward pass: bookkeeping, generation, training, numerics of other kernels.
HARMLESS = {
    "_name_or_path", "_attn_implementation_autoset", "architectures", "attention_dropout", "bos_token_id",
    "chunk_size_feed_forward", "classifier_dropout", "dtype", "eos_token_id", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "gradient_checkpointing", "hidden_dropout", "id2label", "initializer_range", "is_decoder",
    "keys_to_ignore_at_inference", "label2id", "max_length", "max_sequence_length", "model_type", "num_labels",
    "output_attentions", "output_hidden_states", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
    "return_dict", "return_dict_in_generate", "sep_token_id", "task_specific_params", "tokenizer_class",
    "torch_dtype", "torchscript", "transformers.js_config", "transformers_version", "use_cache", CODE,
}  # fmt: skip


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
    """The keys of a config.json, each asked for by name; `finish` refuses those nobody asked for."""

    def __init__(self, where: Path, values: dict[str, Any], ignore: tuple[str, ...] = ()) -> None:
        self.where = where
        self._values = dict(values)
        self._asked = HARMLESS | set(ignore)

    def wrong(self, what: str, needed: str, fix: str = "import a model of this kind only") -> UserError:
        return UserError(f"E-IOP-04 {self.where} {what}; {needed}. Fix: {fix}")

    def optional(self, key: str, default: int | None = None) -> int | None:
        """A whole number above 0; None where it is missing or null, and so is the default."""
        return None if self.take(key, default) is None else self.whole(key, default)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self.take(key, default)
        if not is_positive(value) or not isinstance(value, int):
            raise self._untyped(key, value, "a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.take(key, default)
        if not is_positive(value):
            raise self._untyped(key, value, "a number above 0")
        return float(value)

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
        value = self.take(key, None)
        if value is not None and not isinstance(value, dict):
            raise self._untyped(key, value, "an object or null")
        return value

    def finish(self) -> None:
        """Refuse every key that says something and that nobody asked for."""
        left = [key for key, value in self._values.items() if key not in self._asked and value not in (None, False)]
        if "quantization_config" in left:
            raise self.wrong("quantization_config", "weights in float32, bfloat16 or float16 are needed")
        if left:
            shown = ", ".join(f"{key}={self._values[key]!r}" for key in left)[:300]
            raise self.wrong(
                shown, "it is not known here and may change what the model computes",
                f"when it changes nothing, ignore={','.join(left)} (in a training start.ignore=[{','.join(left)}])",
            )  # fmt: skip

    def take(self, key: str, default: Any = None) -> Any:
        """The value as it is; the default where it is missing or null."""
        self._asked.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def agreed(self, what: str, values: Sequence[Any], default: float) -> float:
        """The one number above 0 that is given, in one place or in several. what: that they are values of."""
        given = {value for value in values if value is not None}
        if len(given) > 1:
            raise self.wrong(f"{what}: {', '.join(map(str, given))}", "one value is needed", "correct the file")
        value = given.pop() if given else default
        if not is_positive(value):
            raise self.wrong(f"{what}={value!r}", "a number above 0 is needed", "correct the file")
        return float(value)

    def _untyped(self, key: str, value: Any, needed: str) -> UserError:
        return UserError(
            f"E-IOP-03 {self.where} {key}={value!r}: must be {needed}. Fix: download or export the folder again"
        )
