"""Keys of a config.json that say nothing about what a model computes: bookkeeping, generation, training, kernels.

Most are so for any value of their type. Some say nothing only for one value, which means that a part is switched off or
that the file was written by a certain program; another value is refused, with what it would mean.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

CODE = "auto_map"  # the key by which a folder names code of its own; never followed


class Kind(NamedTuple):
    """A type of value, and its name in an error."""

    matches: Callable[[Any], bool]
    words: str


def is_number(value: Any) -> bool:
    """Whether it is a number. Python takes true and false for numbers too, JSON does not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_token_ids(value: Any) -> bool:
    """Whether it is a token id or a list of them; -1 is how old files write that there is none."""
    return all(is_whole(one) and one >= -1 for one in value) if isinstance(value, list) else is_token_ids([value])


ANYTHING = Kind(lambda value: True, "anything")
NUMBER = Kind(lambda value: is_number(value) and 0 <= value <= 1, "a number from 0 to 1")
WHOLE = Kind(is_whole, "a whole number")
TRUTH = Kind(lambda value: isinstance(value, bool), "true or false")
TEXT = Kind(lambda value: isinstance(value, str), "text")
TEXTS = Kind(lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value), "a list of texts")
TOKENS = Kind(is_token_ids, "a token id or a list of them")
OBJECT = Kind(lambda value: isinstance(value, dict), "an object")

KINDS: dict[Kind, str] = {
    ANYTHING: "_attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled bad_words_ids "
    "begin_suppress_tokens custom_pipelines diversity_penalty do_sample early_stopping "
    "encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task length_penalty max_length "
    "min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores prefix "
    "remove_invalid_values repetition_penalty suppress_tokens task_specific_params temperature tf_legacy_loss top_k "
    "top_p transformers.js_config typical_p unsloth_fixed unsloth_version use_bfloat16",
    NUMBER: "attention_dropout attention_probs_dropout_prob classifier_dropout hidden_dropout hidden_dropout_prob",
    WHOLE: "chunk_size_feed_forward max_sequence_length num_labels pretraining_tp",
    TRUTH: "gradient_checkpointing is_decoder output_attentions output_hidden_states return_dict "
    "return_dict_in_generate torchscript use_cache",
    TEXT: "_name_or_path dtype problem_type tokenizer_class torch_dtype transformers_version",
    TEXTS: "architectures keys_to_ignore_at_inference",
    TOKENS: "bos_token_id decoder_start_token_id eos_token_id forced_bos_token_id forced_eos_token_id pad_token_id "
    "sep_token_id",
    OBJECT: f"{CODE} id2label label2id",
}
HARMLESS: Mapping[str, Kind] = {key: kind for kind, keys in KINDS.items() for key in keys.split()}


class Only(NamedTuple):
    """A key that says nothing for some values. accepts: (its value, the whole config.json). otherwise: what another
    value means."""

    accepts: Callable[[Any, dict[str, Any]], bool]
    otherwise: str


def _off(otherwise: str) -> Only:
    return Only(lambda value, config: value is False, otherwise)


ONLY: Mapping[str, Only] = {
    # SmolLM and other models that nanotron trained
    "is_llama_config": Only(lambda value, config: value is True, "a model of nanotron that is no LLaMA"),
    "rope_interleaved": _off("features rotated as pairs 2j and 2j + 1"),
    # of Falcon 3, whose hidden_act says it too
    "activation": Only(lambda value, config: value == "swiglu", "another feed-forward layer than a gated SiLU"),
    # SmolLM3's, from Qwen2's configuration; no class of these families reads it
    "max_window_layers": Only(
        lambda value, config: is_whole(value) and config.get("use_sliding_window", False) is False,
        "layers below it without a window, which layer_types says in these families",
    ),
    "pruned_heads": Only(lambda value, config: value == {}, "heads that are missing in some layers"),
    "is_encoder_decoder": _off("an encoder"),
    "add_cross_attention": _off("attention to an encoder"),
}
