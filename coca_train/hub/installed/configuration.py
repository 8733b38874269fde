"""config.json of model_type coca_train, as transformers reads it."""

from typing import Any

from transformers import PretrainedConfig


class CocaTrainConfig(PretrainedConfig):
    """coca_train: the sections of the run's configuration that decide what is computed."""

    model_type = "coca_train"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012

    def __init__(
        self,
        coca_train: dict[str, Any] | None = None,
        vocab_size: int = 0,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        self.coca_train = coca_train or {}
        self.vocab_size, self.use_cache = vocab_size, use_cache
        super().__init__(**kwargs)
