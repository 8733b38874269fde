"""The columns of the table against numbers worked out by hand for neox_tiny: 6 layers, C = 256, 8 heads of D = 32."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coca_train import positions
from coca_train.attention.kernels import KERNELS, choose
from coca_train.catalog.entries import entries
from coca_train.catalog.facts import DTYPE, build_layer, load_reference, measure_scheme, settings_on
from coca_train.catalog.pages import example
from coca_train.runtime.device import pretend_device
from coca_train.settings import load

CONFIGS = Path(__file__).parents[2] / "configs"
LAYERS, C, H, D, WINDOW = 6, 256, 8, 32, 128
J = D // 2
BIASES = {"kerple_log", "kerple_power", "sandwich", "t5"}
ROTARY = {"rope", "xpos", "coca", "coca_strict"}


def choices(group):
    return {path.stem for path in (CONFIGS / group).glob("*.yaml")}


def test_every_choice_of_the_configs_has_a_row(rows):
    assert set(rows) == choices("position")
    assert set(entries("position/rope_scaling")) == choices("position/rope_scaling")
    assert set(entries("attention_pattern")) == choices("attention_pattern")


def test_every_scheme_names_its_paper(rows, table):
    assert [name for name, f in rows.items() if not f.entry.source] == []
    assert table["rope"].entry.link == "https://arxiv.org/abs/2104.09864"
    assert table["coca"].entry.source == table["coca_strict"].entry.source == "2309.08646"
    assert entries("attention_pattern")["rerope"].link == "https://kexue.fm/archives/9708"
    assert entries("position/rope_scaling")["code_llama"].source == "2308.12950"  # not that of its module, plain
    assert entries("position/rope_scaling")["dynamic_yarn"].source == "2309.00071"


def test_parameters(table):
    """Above those of a model without positions."""
    added = {
        "cope": LAYERS * 64 * D,
        "dape": LAYERS * (2 * H + 32 * 2 * H + 32 + H * 32),
        "disentangled": (64 + 1) * C,
        "fire": LAYERS * (2 + 2 * 32 + H * 32),
        "fox": LAYERS * (H * C + H),
        "kerple_log": 2 * H,
        "kerple_power": 2 * H,
        "learned": WINDOW * C,
        "shaw": LAYERS * 2 * (16 + 1) * D,
        "t5": 32 * H,
        "transformer_xl": 2 * H * D + LAYERS * H * D * C,
        "tupe": WINDOW * C + 2 * H * D * C + 32 * H,
    }
    assert {name: f.n_parameters for name, f in table.items() if f.n_parameters} == added
    assert table["shaw"].parameters == {
        "blocks.<i>.attention.position.keys": (17, D),
        "blocks.<i>.attention.position.values": (17, D),
    }
    assert table["rope"].parameters == table["coca"].parameters == {}  # W_T is as W_K


def test_frequencies_with_parameters_are_counted(tiny):
    rope = entries("position")["rope"]
    clex = replace(rope, values=rope.values | {"rope_scaling": entries("position/rope_scaling")["clex"].values})
    assert measure_scheme(clex, tiny).n_parameters == 2 * J * D  # J -> D -> J, once for all layers


def test_relative(table):
    absolute = {"coca", "fire", "learned", "sinusoidal", "tupe"}
    assert {name for name, f in table.items() if f.relative is False} == absolute
    assert {name for name, f in table.items() if f.relative is None} == {"cope", "fox", "nope"}  # know no positions


def test_multiply_adds_of_a_pair(table):
    """q'·k' and the values, D each; shaw and disentangled have two products more, transformer_xl one, tupe's q' is
    twice as wide; folded alibi is eight wider, and so are the values that the fused kernel pads; the MLPs of fire and
    dape are 32 wide, from 1 (no matrix product) or 2H to H."""
    expected = dict.fromkeys(table, 2 * D)
    expected |= {"alibi": 2 * (D + 8), "shaw": 4 * D, "disentangled": 4 * D, "transformer_xl": 3 * D, "tupe": 3 * D}
    expected |= {"fire": 2 * D + 32, "dape": 2 * D + 3 * 32}
    assert {name: f.products for name, f in table.items()} == expected


def test_numbers_handed_to_the_kernel(table):
    """q', k' and v, H·D each per token, and tables over all distances; short tables vanish in a long window."""
    expected = dict.fromkeys(table, 3 * H * D) | dict.fromkeys(BIASES - {"t5"}, 3 * H * D + H)
    expected |= {"alibi": H * (2 * (D + 8) + D), "transformer_xl": 5 * H * D, "tupe": H * (2 * 2 * D + D)}
    expected |= {"fox": 3 * H * D + H, "cope": 3 * H * D + H * 64}  # log f, q·e
    small = {"fire": 2 + 2 * 32 + H * 32, "dape": 2 * H + 32 * 2 * H + 32 + H * 32}
    small |= {"t5": H * 129, "tupe": H * 129, "shaw": 2 * 17 * D, "disentangled": 2 * 65 * H * D}
    for name, row in table.items():
        assert row.numbers == expected[name] + small.get(name, 0) / 4096, name
        assert row.growth == pytest.approx(1, abs=0.03)
        assert row.held(2 * 4096) == pytest.approx(row.numbers * 2 * 4096, rel=0.03)


def test_numbers_in_a_cache(table):
    """Keys and values; coca keeps one number per pair for its keys, fox a gate per head beside them."""
    expected = dict.fromkeys(table, H * 2 * D) | dict.fromkeys(("coca", "coca_strict"), H * (J + D))
    assert {name: f.cached for name, f in table.items()} == expected | {"fox": H * 2 * D + H}


def test_shared_key_heads():
    """4 key/value heads serve 8 query heads."""
    rope = measure_scheme(entries("position")["rope"], load_reference("llama_tiny", 128))
    assert (rope.numbers, rope.cached) == ((8 + 4 + 4) * 32, 4 * 2 * 32)


def test_paths(table):
    plain = {"cpu": ("blocked", "sdpa"), "cuda": ("sdpa", "sdpa")}
    expected = dict.fromkeys(table, plain)
    terms = {"cpu": ("blocked",) * 2, "cuda": ("flex",) * 2}
    expected |= dict.fromkeys({*BIASES, "disentangled", "tupe", "fox"}, terms)
    loop = {"cpu": ("blocked",) * 2, "cuda": ("blocked",) * 2}  # shaw: its values go by distance; hooks of whole tiles
    expected |= dict.fromkeys(("shaw", "fire", "dape", "cope"), loop)
    expected["transformer_xl"] = {"cpu": ("blocked",) * 2, "cuda": ("flex", "blocked")}  # to 512 distances
    assert {name: f.paths for name, f in table.items()} == expected
    assert {kernel for f in table.values() for pair in f.paths.values() for kernel in pair} <= set(KERNELS)


def test_without_a_device_the_path_is_that_of_the_tensors(tiny):
    for name, n_tokens in (("rope", 16), ("t5", 16), ("rope", 1100)):
        settings = tiny.trained_at(n_tokens).scheme(entries("position")[name])
        parts = build_layer(settings, tiny.shape, torch.arange(n_tokens)[None], n_tokens, DTYPE).parts
        with pretend_device("cpu"):
            pretended = choose(parts, n_tokens)
        assert choose(parts, n_tokens) == pretended


def test_alibi_on_cuda_is_asked_as_it_would_run_there(tiny):
    auto = tiny.scheme(entries("position")["alibi"])
    assert settings_on("cuda", auto).fold == "always"
    assert settings_on("cpu", auto) is auto
    position = positions.build(auto, tiny.shape)
    assert position._folds(torch.device("cuda"), 2)  # the reason why
    assert not position._folds(torch.device("cpu"), 2)


def test_longest_windows(table):
    """Tables end with the training window; the powers of xpos fill 120 bits at scale_base 512."""
    xpos = math.floor(120 * 512 / math.log2(1.4 / 0.4))
    assert {name: f.reach for name, f in table.items() if f.reach} == {"learned": 128, "tupe": 128, "xpos": xpos}


def test_what_goes_together(table):
    assert {name for name, f in table.items() if f.rope_scaling} == ROTARY
    placing = ("sinks", "lambda_mask", "rerope")
    refused = {name: {v for v in placing if f.attention_patterns[v]} for name, f in table.items()}
    assert {name: reason for name, reason in refused.items() if reason} == {
        "coca": {"sinks"},
        "tupe": {"sinks"},
        "nope": {"rerope"},
        "learned": {"sinks", "lambda_mask", "rerope"},
        "sinusoidal": {"sinks", "lambda_mask", "rerope"},
        "fire": {"sinks"},
        "fox": {"sinks", "lambda_mask", "rerope"},
        "cope": {"sinks", "lambda_mask", "rerope"},
    }
    assert all(set(f.attention_patterns) == choices("attention_pattern") for f in table.values())


@pytest.mark.parametrize("scheme", sorted(ROTARY))
def test_all_frequencies_really_go_with_a_scheme_that_has_some(scheme, tiny):
    entry = entries("position")[scheme]
    for rope_scaling in entries("position/rope_scaling").values():
        settings = tiny.scheme(replace(entry, values=entry.values | {"rope_scaling": rope_scaling.values}))
        assert not settings.problems(tiny.model)
        build_layer(settings, tiny.shape, torch.arange(5)[None], 5, DTYPE)


def test_the_commands_shown_are_right(rows):
    """Each loads, and trains with the scheme it stands under."""
    for name, row in rows.items():
        program, *words = example(row).removeprefix("python -m ").split()
        assert program == "coca_train"
        assert load(words).config.position.scheme == entries("position")[name].module
