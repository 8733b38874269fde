"""transformers' own tests of a model, on our class. `python -m tests.outside.mixins` runs a copy of this file beside
the tests of a release of transformers: `tests` is their package here, and nothing of ours but coca_train is imported.

SKIPPED says what is left out by us, and why. These leave themselves out:
- flash attention, offloading, several devices: they need a GPU; quanto, kernels: packages that are not installed
- test_model_rope_*, partial rotation: they set `rope_parameters`; our frequencies are `kinds`, which tests/hub holds to
  our own model
- test_sliding_window_mask: it sets `use_sliding_window`, which we have not: a window belongs to a kind
- experts, towers, subconfigs, recurrent layers, multi-token prediction, a plan for tensor parallelism: we have none
Two of their helpers are replaced: they take all layers to hold the same keys (see Both).
"""

import unittest
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

from coca_train.transformers import CocaConfig, CocaForCausalLM, CocaModel
from tests.generation.test_utils import GenerationTesterMixin  # pyright: ignore[reportMissingImports]
from tests.test_modeling_common import ModelTesterMixin, ids_tensor  # pyright: ignore[reportMissingImports]

CAUSAL = {"name": "causal"}
UNSCALED = {"name": "none", "length": None, "beta": 1.0}
PLAIN = {"name": "plain", "theta": 10000.0}
COCA = {"scheme": "coca", "variant": "slack", "t_width": "full_mean", "rotary_pct": 1.0}
SLACK = {"default": {"position": COCA | {"rope_scaling": PLAIN}, "attention_pattern": CAUSAL, "logit_scale": UNSCALED}}
DYNAMIC = {"name": "dynamic_yarn", "theta": 10000.0, "original_seq_len": 8, "beta_fast": 4.0, "beta_slow": 1.0}
WINDOW = {"name": "sliding_window", "window": 4}
DYNAMIC_AND_WINDOW = {
    "default": {"position": COCA | {"rope_scaling": DYNAMIC}, "attention_pattern": CAUSAL, "logit_scale": UNSCALED},
    "window": {
        "position": {"scheme": "rope", "rotary_pct": 0.5, "rope_scaling": PLAIN},
        "attention_pattern": WINDOW,
        "logit_scale": {"name": "log", "length": 4, "beta": 1.0},
    },
}
ALIBI_AND_WINDOW = {
    "default": {"position": {"scheme": "alibi"}, "attention_pattern": CAUSAL, "logit_scale": UNSCALED},
    "window": {"position": {"scheme": "nope"}, "attention_pattern": WINDOW, "logit_scale": UNSCALED},
}
# As a class of theirs is known: which one has a loss, and labels among its inputs.
MODEL_MAPPING_NAMES[CocaConfig.model_type] = CocaModel.__name__
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[CocaConfig.model_type] = CocaForCausalLM.__name__


class Tiny:
    """What their tests ask of a model: a configuration, inputs, and some of the numbers in both."""

    batch_size, seq_length, is_training = 13, 7, True
    vocab_size, hidden_size, intermediate_size, num_attention_heads, num_key_value_heads = 99, 32, 32, 4, 2

    num_hidden_layers = 2

    def __init__(self, config_class: Any, **settings: Any) -> None:
        self.config_class, self.settings = config_class, settings

    def get_config(self) -> Any:
        sizes = {name: getattr(self, name) for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
            "num_hidden_layers",
        )}  # fmt: skip
        return self.config_class(**sizes, **self.settings, pad_token_id=0, bos_token_id=1, eos_token_id=2)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        ids_BT = ids_tensor([self.batch_size, self.seq_length], self.vocab_size)
        return self.get_config(), {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT).tril()}


SKIPPED = {
    "test_bc_cache_name_forward": "it wants a warning for past_key_values, which a class for 5.4 too takes as readily "
    "as cache; tests/hub/test_modeling_coca.py holds both names to the same logits",
}


class Both(ModelTesterMixin, GenerationTesterMixin):
    all_model_classes = (CocaModel, CocaForCausalLM)
    tiny: Tiny

    def setUp(self) -> None:
        if reason := SKIPPED.get(self._testMethodName):
            self.skipTest(reason)
        self.model_tester = self.tiny

    def _check_past_key_values_for_generate(
        self, batch_size: int, past_key_values: Any, seq_length: int, config: Any
    ) -> None:
        """As theirs, for layers that differ: keys of CoCA whose rotation follows the length are held at half width, and
        what has left a window is held no longer."""
        assert len(past_key_values.layers) == config.num_hidden_layers
        for name, layer in zip(config.layer_kinds, past_key_values.layers, strict=True):
            kind, width = config.kinds[name], config.head_dim
            window, n_held = kind["attention_pattern"].get("window", seq_length), layer.values.shape[2]
            # The newest key may come on top; what assistance may have to take back is held whole.
            assert n_held in (seq_length, min(seq_length, window), min(seq_length, window - 1))
            shape = (batch_size, config.num_key_value_heads, n_held)
            assert layer.values.shape == (*shape, width)
            halved = kind["position"].get("rope_scaling") == DYNAMIC
            assert layer.keys.shape == (*shape, width // 2 if halved else width)

    def _check_attentions_for_generate(self, *, attentions: Any, config: Any, **sizes: Any) -> None:
        """As theirs, for the layers without a window: they know of none."""
        whole = [layer for layer, kind in enumerate(config.layer_types) if kind == "full_attention"]
        of_whole = tuple(tuple(step[layer] for layer in whole) for step in attentions)
        super()._check_attentions_for_generate(attentions=of_whole, config=config, **sizes)


class SlackTest(Both, unittest.TestCase):
    tiny = Tiny(CocaConfig, kinds=SLACK)


class DynamicTest(Both, unittest.TestCase):
    tiny = Tiny(CocaConfig, kinds=DYNAMIC_AND_WINDOW, layer_kinds=["default", "window"], qk_norm="head")


class AlibiTest(Both, unittest.TestCase):
    tiny = Tiny(
        CocaConfig, kinds=ALIBI_AND_WINDOW, layer_kinds=["default", "window"], tie_word_embeddings=True,
        residual="parallel", norm="layernorm", bias=["qkv", "out", "mlp", "norm"],
    )  # fmt: skip


class LlamaTest(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    """What fails here as well is none of our faults."""

    all_model_classes = (LlamaModel, LlamaForCausalLM)

    def setUp(self) -> None:
        self.model_tester = Tiny(LlamaConfig)
