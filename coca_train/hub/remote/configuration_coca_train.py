"""Configuration of a model trained with coca_train (written by `python -m coca_train export`)."""

from transformers import PretrainedConfig


class CocaTrainConfig(PretrainedConfig):
    """`coca_train` holds the model, position and visibility sections as they were trained; `rotary` the frequencies."""

    model_type = "coca_train"

    def __init__(self, coca_train=None, rotary=None, vocab_size=0, **kwargs):
        self.coca_train = coca_train or {}
        self.rotary = rotary or {}
        self.vocab_size = vocab_size
        kwargs.setdefault("use_cache", False)
        super().__init__(**kwargs)
