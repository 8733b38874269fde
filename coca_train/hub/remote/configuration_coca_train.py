"""config.json of an exported model, as transformers reads it."""

from typing import Any

from transformers import PretrainedConfig


class Section:
    """A section of config.json: its keys as attributes, read-only."""

    def __init__(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            self.__dict__[key] = Section(value) if isinstance(value, dict) else value

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError(f"{key} is what config.json says; it cannot be set")


class CocaTrainConfig(PretrainedConfig):
    """coca_train: the sections of the run's configuration that decide what is computed. layer_kinds: the kind of every
    layer. kinds: of each kind, and of `own`, its position, visibility and logit scale in full."""

    model_type = "coca_train"

    def __init__(
        self,
        coca_train: dict[str, Any] | None = None,
        layer_kinds: list[str] | None = None,
        kinds: dict[str, Any] | None = None,
        vocab_size: int = 0,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        self.coca_train = coca_train or {}
        self.layer_kinds = layer_kinds or []
        self.kinds = kinds or {}
        self.vocab_size, self.use_cache = vocab_size, use_cache
        super().__init__(**kwargs)
