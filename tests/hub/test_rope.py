"""Scalings in both tongues, held against the frequencies that transformers computes from its own words."""

import sys
import textwrap
from importlib.metadata import EntryPoint

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from coca_train import positions
from coca_train.positions import ROPE_SCALINGS, hugging_face, rope_scaling
from coca_train.runtime.errors import UserError

D, POSITIONS = 64, 4096


def theirs(scaling, theta=10000.0, max_positions=POSITIONS, length=None):
    config = transformers.LlamaConfig(
        hidden_size=D, num_attention_heads=1, max_position_embeddings=max_positions,
        rope_parameters={"rope_theta": theta, **(scaling or {"rope_type": "default"})},
    )  # fmt: skip
    if scaling is None:
        return transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq, 1.0
    return ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", seq_len=length)


def ours(section, length):
    settings = rope_scaling.settings_class(section["name"])(**section)
    spectrum = settings.build(D)(length)
    return settings, spectrum


L3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PHI3 = {  # LongRoPE as Phi-3 has it
    "rope_type": "longrope",
    "original_max_position_embeddings": 1024,
    "short_factor": [1.0 + j / 64 for j in range(D // 2)],
    "long_factor": [1.0 + j for j in range(D // 2)],
}
CASES = [
    None,
    {"rope_type": "linear", "factor": 16.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 131072},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "beta_fast": 20.0, "beta_slow": 2.0},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "attention_factor": 1.0},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 512,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},  # gpt-oss
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "truncate": False,
        "attention_factor": 1.0,
    },
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 512,
        "mscale": 0.707,
        "mscale_all_dim": 1.0,
    },
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "attention_factor": 0.7},
    L3 | {"original_max_position_embeddings": 8192},
    L3 | {"original_max_position_embeddings": 256, "low_freq_factor": 2.0, "high_freq_factor": 6.0},
    PHI3 | {"factor": 8.0},
    PHI3,  # the factor is that of both lengths
    PHI3 | {"attention_factor": 1.19},
]


@pytest.mark.parametrize("scaling", CASES)
@pytest.mark.parametrize("length", [512, 4 * POSITIONS])
def test_read_and_written_as_transformers_computes(scaling, length):
    expected, temperature = theirs(scaling, length=length)
    _, section = hugging_face.rope_scaling(scaling or {}, 10000.0, POSITIONS, 1.0)
    settings, spectrum = ours(section, length)
    torch.testing.assert_close(spectrum.inv_freq_J, expected, rtol=1e-6, atol=0)
    assert spectrum.temperature == pytest.approx(temperature, rel=1e-6)

    back = hugging_face.to_native(settings, D, 1.0)
    again, temperature_again = theirs(back.scaling, back.theta, back.max_positions or POSITIONS, length)
    torch.testing.assert_close(again, expected, rtol=1e-6, atol=0)
    assert temperature_again == pytest.approx(temperature, rel=1e-6)


RAMP = {"theta": 10000.0, "original_seq_len": 64, "beta_fast": 32.0, "beta_slow": 1.0}


@pytest.mark.parametrize(
    "section",
    [
        {"name": "yarn", **RAMP, "factor": 4.0, "convention": "paper"},
        {"name": "dynamic_yarn", **RAMP, "convention": "code"},
        {"name": "dynamic_linear", "theta": 10000.0, "original_seq_len": 64},
        {"name": "ntk_by_parts", **RAMP, "factor": 4.0, "convention": "authors"},
    ],
)
def test_what_native_classes_have_no_word_for(section):
    settings, _ = ours(section, 512)
    with pytest.raises(hugging_face.NotTheSame, match=section["name"]):
        hugging_face.to_native(settings, D, 1.0)


@pytest.mark.parametrize(("rotary_pct", "temperature_on", "native"),
                         [(1.0, "head", True), (0.25, "rotated", True), (0.25, "head", False)])  # fmt: skip
def test_a_temperature_on_the_whole_of_a_head_that_is_rotated_in_part_is_no_native_model(
    rotary_pct, temperature_on, native
):
    section = {"name": "yarn", **RAMP, "factor": 4.0, "convention": "code"}
    settings = positions.settings(
        {"scheme": "rope", "rotary_pct": rotary_pct, "temperature_on": temperature_on, "rope_scaling": section}
    )
    if native:
        assert hugging_face.rotation(settings, D).rotary_pct == rotary_pct
    else:
        with pytest.raises(hugging_face.NotTheSame, match="temperature_on"):
            hugging_face.rotation(settings, D)


def test_the_length_a_scaling_starts_from():
    """Without original_max_position_embeddings it is max_position_embeddings, as in transformers."""
    _, section = hugging_face.rope_scaling({"type": "yarn", "factor": 2.0}, 10000.0, 1000, 1.0)
    assert section["original_seq_len"] == 1000
    _, section = hugging_face.rope_scaling({"rope_type": "dynamic", "factor": 2.0}, 10000.0, 1000, 1.0)
    assert (section["original_seq_len"], section["alpha"]) == (1000, 2.0)


@pytest.fixture
def interpolated(tmp_path, monkeypatch):
    """Frequencies of another package that take the rope_type of ours, `linear`, as far as `where` says."""

    def offer(where="True"):
        source = f"""
            from coca_train.positions.rope_scaling import RopeScaling
            from coca_train.positions.hugging_face import NotTheSame

            class Settings(RopeScaling):
                ROPE_TYPE = "linear"

                @classmethod
                def from_transformers(cls, scaling):
                    if scaling.theta > 20000:
                        raise NotTheSame("a base above 20000")
                    return {{"theta": scaling.theta, "strength": scaling.factor()}} if {where} else None
        """
        (tmp_path / "interpolated_elsewhere.py").write_text(textwrap.dedent(source), encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "interpolated_elsewhere", raising=False)
        point = EntryPoint("interpolated", "interpolated_elsewhere", ROPE_SCALINGS.plugins)
        monkeypatch.setitem(ROPE_SCALINGS._points, "interpolated", point)

    return offer


def read(theta=10000.0):
    return hugging_face.rope_scaling({"rope_type": "linear", "factor": 4.0}, theta, POSITIONS, 1.0)[1]["name"]


def test_two_owners_of_a_rope_type_are_refused(interpolated):
    """By the order of names one would take what the other wrote, and nobody would see it."""
    interpolated()
    with pytest.raises(UserError, match=r"^E-IOP-22 rope_type=linear: .*interpolated \(.* and linear \(.*Fix: .*None"):
        read()


def test_owners_may_share_a_rope_type_where_one_answers(interpolated):
    interpolated("scaling.take('factor') == 8")
    assert read() == "linear"
    interpolated()
    assert read(theta=30000.0) == "linear"  # the other refuses
