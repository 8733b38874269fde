"""Models as they were published: read as their class of transformers reads them, or refused with a reason."""

import json
import math

import pytest
import torch
import transformers

from coca_train.hub.config_json import read_architecture
from coca_train.hub.families import FAMILIES
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
    shapes = read_architecture(tmp_path).shapes().values()
    theirs = built(configuration(READ[name])).parameters()
    assert sum(map(math.prod, shapes)) == sum(parameter.numel() for parameter in theirs)


@pytest.mark.parametrize("name", slow_unless(FIRST.values(), READ))
def test_computed_as_its_class_computes_it(name, tmp_path, import_run):
    values = small(READ[name])
    folder = tmp_path / "model"
    config = {key: value for key, value in values.items() if key not in ("architectures", "auto_map", "torch_dtype")}
    torch.manual_seed(0)
    cls = getattr(transformers, FAMILIES[values["model_type"]].transformers_class)
    model = cls(configuration(config))
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
    ],
)
def test_has_as_many_parameters_as_were_published(name, n_parameters, tmp_path):
    models.edit_new(tmp_path, READ[name])
    assert sum(math.prod(shape) for shape in read_architecture(tmp_path).shapes().values()) == n_parameters


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
    (READ["OLMo 1B"], "clip_qkv", None, 8.0),
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


def test_two_sections_that_agree(tmp_path):
    same = {"rope_scaling": {"type": "linear", "factor": 2}, "rope_theta": 5e5}
    newer = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    models.edit_new(tmp_path, LLAMA2 | same | newer)
    both = read_architecture(tmp_path)
    models.edit_new(tmp_path, LLAMA2 | same)
    assert both == read_architecture(tmp_path)
