"""Models as they were published: read as their class of transformers reads them, or refused with a reason."""

import json
import math

import pytest
import torch
import transformers

from coca_train.hub.config_json import read_architecture
from coca_train.hub.families import FAMILIES, name_of
from coca_train.hub.layouts import SkippedRows
from coca_train.runtime.errors import UserError
from tests.cases import slow_unless
from tests.hub import models
from tests.hub.class_defaults import built, configuration, ours, reading
from tests.hub.published import FIRST, GEMMA, GEMMA2, LLAMA2, MISTRAL, NEOX, READ, REFUSED, YARN, small


@pytest.mark.parametrize("name", READ)
def test_read_as_its_class_reads_it(name, tmp_path):
    models.edit_new(tmp_path, READ[name])
    assert ours(read_architecture(tmp_path)) == reading(READ[name])


@pytest.mark.parametrize("name", READ)
def test_has_the_weights_of_its_class(name, tmp_path):
    models.edit_new(tmp_path, READ[name])
    theirs = built(configuration(READ[name])).parameters()
    assert n_weights(tmp_path) == sum(parameter.numel() for parameter in theirs)


def n_weights(folder):
    """Of the folder's class: ours, and rows that are not used (OPT)."""
    architecture = read_architecture(folder)
    family = FAMILIES[name_of(json.loads((folder / "config.json").read_text()))]
    skipped = sum(layout.skipped for layout in family.layouts if isinstance(layout, SkippedRows))
    return sum(map(math.prod, architecture.shapes().values())) + skipped * architecture.model.d_model


@pytest.mark.parametrize("name", slow_unless(FIRST.values(), READ))
def test_computed_as_its_class_computes_it(name, tmp_path, import_run):
    values = small(READ[name])
    folder = tmp_path / "model"
    config = {key: value for key, value in values.items() if key not in ("architectures", "auto_map", "torch_dtype")}
    torch.manual_seed(0)
    of_class = configuration(config)
    model = getattr(transformers, FAMILIES[of_class.model_type].transformers_class)(of_class)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # zeros and ones would hide a swap
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.2)
    model.save_pretrained(folder)
    models.edit_new(folder, values)  # as it was published, not as this version writes it
    record = json.loads((import_run(folder) / "parity.json").read_text())
    assert record["passed"]
    assert max(probe["max_abs_logit"] for probe in record["probes"]) > 0.5


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name, tmp_path):
    values, reason = REFUSED[name]
    models.edit_new(tmp_path, values)
    with pytest.raises(UserError, match="E-IOP-04") as raised:
        read_architecture(tmp_path)
    assert reason in str(raised.value)
    assert "Fix:" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "n_parameters"),
    [
        ("LLaMA 1 7B", 6_738_415_616),
        ("Llama 3 8B", 8_030_261_248),
        ("Mistral 7B 0.1", 7_241_732_096),
        ("SmolLM2 135M", 134_515_008),
        ("Pythia 2.8B", 2_775_208_960),
        ("Qwen2.5 0.5B", 494_032_768),
        ("Qwen2.5 7B", 7_615_616_512),
        ("Qwen2.5 32B", 32_763_876_352),
        ("Qwen3 0.6B", 596_049_920),
        ("Qwen3 8B", 8_190_735_360),
        ("Gemma 2B", 2_506_172_416),
        ("Gemma 7B", 8_537_680_896),
        ("Gemma 2 2B", 2_614_341_888),
        ("Gemma 2 9B", 9_241_705_984),
        ("Gemma 2 27B", 27_227_128_320),
        ("Phi 2", 2_779_683_840),
        ("Phi 3 mini 4k", 3_821_079_552),
        ("Phi 3 medium 4k", 13_960_238_080),
        ("OLMo 1B", 1_176_764_416),
        ("OLMo 2 7B", 7_298_617_344),
        ("OLMo 2 32B", 32_234_279_936),
        ("Granite 3.1 8B", 8_170_848_256),
        ("Seed-OSS 36B", 36_151_104_512),
        ("StarCoder2 3B", 3_030_371_328),
        ("StableLM 3B", 2_795_443_200),
        ("StableLM 2 1.6B", 1_644_515_328),
        ("GLM 4 9B", 9_399_951_360),
        ("GLM 4 32B 0414", 32_566_081_536),
        ("Command R", 34_980_831_232),
        ("Aya 23 8B", 8_028_033_024),
        ("Command A", 111_057_580_032),
        ("Phi 4 mini", 3_836_021_760),
        ("OLMo 3 7B", 7_298_011_136),
        ("OLMo 3 32B", 32_233_522_176),
        ("Gemma 3 1B", 999_885_952),
        ("Gemma 3 270M", 268_098_176),
        ("EXAONE 4 1.2B", 1_279_391_488),
        ("InternLM3 8B", 8_804_241_408),
        ("GPT-2", 124_439_808),
        ("GPT-2 XL", 1_557_611_200),
        ("DistilGPT2", 81_912_576),
        ("StarCoder", 15_517_456_384),
        ("OPT 125M", 125_239_296),
        ("OPT 1.3B", 1_315_758_080),
        ("OPT 6.7B", 6_658_473_984),
        ("BLOOM 560M", 559_214_592),
        ("BLOOM 7B1", 7_069_016_064),
        ("MPT 7B", 6_649_286_656),
        ("Falcon 7B", 6_921_720_704),
    ],
)
def test_has_as_many_parameters_as_were_published(name, n_parameters, tmp_path):
    models.edit_new(tmp_path, READ[name])
    assert n_weights(tmp_path) == n_parameters


R7B = READ["Command R7B"]
HARMLESS = [
    (LLAMA2, "is_llama_config", True, False),
    (LLAMA2, "rope_interleaved", False, True),
    (LLAMA2, "activation", "swiglu", "relu"),
    (LLAMA2, "pruned_heads", {}, {"0": [1]}),
    (READ["SmolLM3 3B"], "max_window_layers", 28, "28"),
    (READ["SmolLM3 3B"] | {"use_sliding_window": True}, "max_window_layers", None, 28),
    (NEOX, "rope_theta", 10000, 20000),
    (NEOX, "partial_rotary_factor", 0.25, 0.5),
    (LLAMA2, "rope_scaling", YARN, YARN | {"finetuned": "yes"}),
    (GEMMA, "hidden_activation", "gelu_pytorch_tanh", "gelu"),
    (LLAMA2, "hidden_activation", None, "gelu_pytorch_tanh"),
    (GEMMA2, "hidden_act", "gelu_pytorch_tanh", "gelu"),
    (GEMMA2 | {"hidden_activation": "gelu"}, "hidden_act", "gelu", "gelu_pytorch_tanh"),
    (GEMMA2, "sliding_window_size", 4096, 8192),
    (R7B, "layer_switch", 4, 2),
    (R7B, "order_of_interleaved_layers", "local_attn_first", "global_attn_first"),
    (R7B, "position_embedding_type", "rope_gptj", "alibi"),
    (R7B, "rotary_pct", 1.0, 0.5),
    (R7B, "use_embedding_sharing", True, False),
    (R7B, "use_gated_activation", True, False),
    (R7B, "use_parallel_block", True, False),
    (R7B, "_sliding_window_pattern", None, 4),
    (READ["StarCoder2 7B"], "mlp_type", "default", "gated"),
    (READ["StarCoder2 7B"], "norm_type", "layer_norm", "rms_norm"),
    (READ["Phi 4"], "full_attn_mod", 1, 2),
    (READ["Phi 4"], "interpolate_factor", 1, 2),
    (READ["Gemma 3 1B"], "use_bidirectional_attention", False, True),
    (READ["GPT-2"], "scale_attn_by_inverse_layer_idx", False, True),
    (READ["OPT 125M"], "do_layer_norm_before", True, False),
    (READ["BLOOM 560M"], "apply_residual_connection_post_layernorm", False, True),
    (READ["MPT 7B"], "expansion_ratio", 4, 2),
    (READ["MPT 7B"], "no_bias", True, False),
    (READ["Falcon 7B"], "parallel_attn", True, False),
    (READ["Falcon 11B"], "ff_factor", 4, 2),
]


@pytest.mark.parametrize(("base", "key", "harmless", "other"), HARMLESS)
def test_harmless_for_one_value(base, key, harmless, other, tmp_path):
    models.edit_new(tmp_path, base | {key: harmless})
    read_architecture(tmp_path)
    models.edit_new(tmp_path, base | {key: other})
    with pytest.raises(UserError, match=r"E-IOP-0[34]") as raised:
        read_architecture(tmp_path)
    assert key in str(raised.value)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (MISTRAL | {"rope_scaling": YARN}, "rope_scaling.finetuned"),
        (LLAMA2 | {"rope_scaling": {"type": "linear", "factor": 2.0, "mystery": 1}}, "rope_scaling.mystery"),
        (LLAMA2 | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "m": 1}}, "rope_parameters.m"),
    ],
)
def test_a_key_of_a_section_is_ignored_by_its_path(values, named, tmp_path):
    models.edit_new(tmp_path, values)
    with pytest.raises(UserError, match=f"ignore={named}"):
        read_architecture(tmp_path)
    read_architecture(tmp_path, (named,))
    with pytest.raises(UserError, match="E-IOP-04"):
        read_architecture(tmp_path, (named.rpartition(".")[2],))


def test_what_is_read_is_not_ignored(tmp_path):
    models.edit_new(tmp_path, LLAMA2 | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    ignored = read_architecture(tmp_path, ("rope_scaling.factor", "rope_scaling", "hidden_size"))
    assert ignored == read_architecture(tmp_path)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
         "factor"),
        ({"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 1.5e4}, "rope_theta": 1e4}, "rope_theta"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0},
          "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}, "rope_theta"),
        ({"rope_scaling": YARN, "original_max_position_embeddings": 2048}, "original_max_position_embeddings"),
    ],
)  # fmt: skip
def test_what_is_said_twice_is_the_same(values, named, tmp_path):
    models.edit_new(tmp_path, LLAMA2 | values)
    with pytest.raises(UserError, match="E-IOP-04") as raised:
        read_architecture(tmp_path)
    assert named in str(raised.value)


def test_a_share_outside_of_the_section_that_5_4_always_writes(tmp_path):
    """Its StableLM saves 0.25 there, whatever the section has; no version reads it then."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    stablelm = {key: value for key, value in READ["StableLM 3B"].items() if key != "rope_theta"}
    stablelm |= {"rope_parameters": rope}
    models.edit_new(tmp_path, stablelm | {"partial_rotary_factor": 0.25})
    assert ours(read_architecture(tmp_path))["rotary_pct"] == 0.5 == reading(stablelm)["rotary_pct"]
    for values in ({"partial_rotary_factor": 0.75}, {"rope_scaling": rope | {"partial_rotary_factor": 0.25}}):
        models.edit_new(tmp_path, stablelm | values)
        with pytest.raises(UserError, match=r"E-IOP-04 .*partial_rotary_factor"):
            read_architecture(tmp_path)


PARTS = {"sliding_attention": {"rope_type": "default"}, "full_attention": {"rope_type": "default"}}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.type"),
        ({"rope_parameters": PARTS | {"full_attention": {"partial_rotary_factor": 0.5}}}, "partial_rotary_factor=0.5"),
    ],
)
def test_what_a_class_with_two_sections_does_not_read(values, named, tmp_path):
    gemma3 = {key: value for key, value in READ["Gemma 3 1B"].items() if not key.startswith("rope_")}
    models.edit_new(tmp_path, gemma3 | values)
    with pytest.raises(UserError, match="E-IOP-04") as raised:
        read_architecture(tmp_path)
    assert named in str(raised.value)


def test_two_sections_that_agree(tmp_path):
    same = {"rope_scaling": {"type": "linear", "factor": 2}, "rope_theta": 5e5}
    newer = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    models.edit_new(tmp_path, LLAMA2 | same | newer)
    both = read_architecture(tmp_path)
    models.edit_new(tmp_path, LLAMA2 | same)
    assert both == read_architecture(tmp_path)
