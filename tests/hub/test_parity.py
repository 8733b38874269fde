"""The parity check itself: what it asks, what it lets pass, and that a model of any size goes through it in pieces."""

import json
import math
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from coca_train.hub import exporting, forms, layer_rules, parity, small_copy, transformers_side
from coca_train.hub.options import VerifyConfig
from coca_train.hub.weights import open_source
from coca_train.positions.hugging_face import NotTheSame
from coca_train.runtime.errors import CheckpointError, UserError
from tests.hub import models


def probes_of(folder, max_tokens=2048):
    with open_source(folder) as source:
        return parity.probes(source.architecture, None, max_tokens)


def test_probes_are_fixed_and_reach_four_times_the_trained_length(model):
    first, again = probes_of(model()), probes_of(model())
    assert [probe.length for probe in first] == [models.LENGTH, 4 * models.LENGTH]
    assert all(torch.equal(a.tokens_BT, b.tokens_BT) for a, b in zip(first, again, strict=True))
    assert torch.equal(first[1].pos_BT[0], torch.arange(4 * models.LENGTH))


def test_few_tokens_are_spread_over_all_positions(model):
    near, far = probes_of(model(), 10)
    assert far.tokens_BT.shape == far.pos_BT.shape == (1, 10)
    assert (far.pos_BT[0, 0], far.pos_BT[0, -1], far.length) == (0, 4 * models.LENGTH - 1, 4 * models.LENGTH)
    assert (far.pos_BT[0].diff() > 5).all()
    assert near.length == models.LENGTH


def test_under_a_window_they_stand_together_at_the_end(model):
    _, far = probes_of(model("mistral"), 10)
    assert far.pos_BT[0].tolist() == list(range(4 * models.LENGTH - 10, 4 * models.LENGTH))


@pytest.mark.parametrize(
    ("kind", "changes", "tokens", "window"),
    [
        ("mistral", {}, 2048, None),  # 20, and the ordinary probe has 96 tokens
        ("mistral", {}, 16, 20),
        ("mistral", {"sliding_window": ...}, 2048, 4096),  # what its class takes
        ("mistral", {"sliding_window": 1 << 17}, 2048, 4096),  # narrowed
        ("mistral", {"sliding_window": None}, 16, None),
        ("smollm3_window", {}, 5, 7),
        ("smollm3_window", {"no_rope_layers": ..., "layer_types": ...}, 5, 7),
        ("llama_gqa", {}, 10, None),
    ],
)
def test_every_window_is_crossed(kind, changes, tokens, window, copy, import_run):
    """In a small copy where the ordinary probes are too short for it."""
    folder = copy(kind)
    models.edit(folder, **changes)
    record = json.loads((import_run(folder, parity_tokens=tokens) / "parity.json").read_text())
    beyond = [probe for probe in record["probes"] if probe["probe"] == "beyond the window"]
    assert [probe["length"] for probe in beyond] == ([] if window is None else [window + small_copy.BEYOND])


def test_a_window_that_is_read_otherwise_is_seen(copy, import_run, monkeypatch):
    """At 4,128 tokens, where the folder's own probes have 96."""
    folder = copy("mistral")
    models.edit(folder, sliding_window=...)
    wrong = {"name": "sliding_window", "window": 4000}, None
    monkeypatch.setattr(layer_rules.WindowLayers, "read", lambda self, keys, n_layers, of_windows: wrong)
    with pytest.raises(CheckpointError, match=r"E-IOP-13.*beyond the window"):
        import_run(folder)


@pytest.mark.parametrize("length", [24, 80, 107, 120])
@pytest.mark.parametrize("rope_scaling", [False, True])
def test_one_probe_leaves_nothing_behind_for_the_next(length, rope_scaling, tmp_path):
    """transformers keeps the frequencies of a long text for one of exactly the trained length."""
    folder = models.write(tmp_path / "model", "llama_gqa", "dynamic", max_position_embeddings=length)
    with open_source(folder) as source:
        short = parity.Probe("text", torch.arange(length)[None] % models.VOCAB, torch.arange(length)[None], length)
        far = parity.probes(source.architecture, None, 2048)[1]
        side, spectra = transformers_side.side_of_folder(folder), parity.our_spectra(source.architecture)
        logits = (lambda probes: side.logits_with(probes, spectra)[0]) if rope_scaling else side.logits
        (alone,), (_, after) = logits([short]), logits([far, short])
        torch.testing.assert_close(after, alone, rtol=0, atol=0)
        results = parity.compare([far, short], parity.our_logits(source.architecture, source.read), side, spectra)
        assert parity.passed(results)


@pytest.mark.parametrize("scaling", ["plain", "dynamic"])
def test_spread_positions_mean_the_same_on_both_sides(scaling, model, import_run):
    run = import_run(model("llama_gqa", scaling), parity_tokens=10)
    assert [p["n_tokens"] for p in json.loads((run / "parity.json").read_text())["probes"]] == [10, 10]


@pytest.mark.parametrize("kind", models.KINDS)
@pytest.mark.parametrize("scaling", ["plain", "dynamic"])
def test_the_other_side_in_pieces_is_the_other_side(kind, scaling, model, monkeypatch):
    """Block by block from the folder, and with our weights streamed in: what from_pretrained gives."""
    folder = model(kind, scaling)
    ids = probes_of(folder)
    monkeypatch.setattr(transformers_side, "SHARE", math.inf)
    whole = transformers_side.side_of_folder(folder).logits(ids)
    monkeypatch.setattr(transformers_side, "SHARE", 0.0)
    with open_source(folder) as source:
        sides = [
            transformers_side.side_of_folder(folder),
            transformers_side.side_of_source(source, forms.native_config(source.architecture, source.family)),
        ]
        for side in sides:
            for a, b in zip(side.logits(ids), whole, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj.weight", "lm_head.weight", "model.norm.weight"])
def test_one_weight_that_differs_is_seen(name, model, import_run, copy, tmp_path):
    run, folder = import_run(model()), copy()
    before = (run / "parity.json").read_text()
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[5] += 0.05
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="E-IOP-13") as raised:
        exporting.verify_export(VerifyConfig(run=str(run), against=str(folder)))
    assert raised.value.exit_code == 4
    record = json.loads((run / "parity.json").read_text())
    assert not record["passed"]
    assert json.loads(before)["passed"]
    exporting.verify_export(VerifyConfig(run=str(run), against=str(model())))
    assert json.loads((run / "parity.json").read_text())["passed"]


def test_another_angle_is_no_rounding(model, import_run, copy):
    """Frequencies that differ by more than an ulp or two are not taken over in silence."""
    run, folder = import_run(model()), copy()
    values = json.loads((folder / "config.json").read_text())
    values["rope_parameters"]["rope_theta"] = 501.0
    models.edit(folder, **values)
    with pytest.raises(CheckpointError, match=r"E-IOP-13.*with our frequencies"):
        exporting.verify_export(VerifyConfig(run=str(run), against=str(folder)))


def result(relative, again=None, rope_scaling=None):
    return parity.Result("p", 8, 8, relative, 1.0, relative, again, rope_scaling)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([], False),
        ([result(1e-5)], True),
        ([result(1.01e-5)], False),
        ([result(0.0), result(math.nan)], False),
        ([result(1e-4, 1e-6, 1e-7)], True),
        ([result(1e-4, 2e-5, 1e-7)], False),
        ([result(1e-4, 1e-6, 2e-6)], False),
        ([result(1e-4, math.nan, 1e-7)], False),
        ([result(1e-4, 1e-6, math.nan)], False),
    ],
)
def test_what_passes(results, expected):
    assert parity.passed(results) is expected


def test_rounding_of_frequencies_at_far_positions(tmp_path, import_run):
    """At 40,000 positions an ulp of a frequency is 1e-3 radians: seen, explained, and nothing else hides behind it."""
    folder = models.write(tmp_path / "far", "llama_gqa", max_position_embeddings=10_000, rope_parameters=None)
    run = import_run(folder, parity_tokens=48)
    record = json.loads((run / "parity.json").read_text())
    far = record["probes"][1]
    assert record["passed"]
    assert far["relative"] > 1e-5 > far["with_our_frequencies"]
    assert 0 < far["frequencies"] < 1e-6


@pytest.mark.parametrize("name", ["plain", "yarn"])
def test_a_real_window_is_decoded_as_it_is_read(name, monkeypatch):
    """Heads of 128 at a thousand positions, as LLaMA has them: an export is not refused for an ulp of its frequencies,
    and is for another angle."""
    scaled = {"factor": 4.0, "original_seq_len": 256, "beta_fast": 32.0, "beta_slow": 1.0, "convention": "code"}
    rope_scaling = {"name": name, "theta": 1e4} | (scaled if name == "yarn" else {})
    source = models.random_source({"scheme": "rope", "rotary_pct": 1.0, "rope_scaling": rope_scaling}, head_dim=128)
    source = replace(source, architecture=replace(source.architecture, seq_len=1024))
    results = small_copy.check_decoding(source, "llama")
    assert {result.probe for result in results} == {f"small copy, {how}" for how in ("packed", "padded", "cached")}
    assert parity.passed(results)
    assert any(result.relative > parity.BOUND for result in results)
    written = forms.native_config

    def turned(*given):
        values = written(*given)
        values.get("rope_parameters", values)["rope_theta"] *= 1.001
        return values

    monkeypatch.setattr(forms, "native_config", turned)
    assert not any(result.passed for result in small_copy.check_decoding(source, "llama"))


def test_difference_and_scale():
    """By hand: relative to the largest logit where that is above 1, else absolute."""
    probe = parity.Probe("p", torch.zeros(1, 2, dtype=torch.long), torch.arange(2)[None], 2)
    for ours, theirs, expected in (
        ([[0.0, 8.0]], [[0.5, 8.0]], (0.5, 8.0, 0.0625)),
        ([[0.0, 0.2]], [[0.1, 0.2]], (0.1, 0.2, 0.1)),
        ([[0.0, -8.0]], [[0.0, -4.0]], (4.0, 8.0, 0.5)),
    ):
        side = parity.Side("x", lambda ids, theirs=theirs: [torch.tensor(theirs)])
        (comparison,) = parity.compare([probe], lambda ids, ours=ours: [torch.tensor(ours)], side, None)
        assert (comparison.max_abs_difference, comparison.max_abs_logit, comparison.relative) == pytest.approx(expected)


def test_another_shape_never_passes():
    probe = parity.Probe("p", torch.zeros(1, 2, dtype=torch.long), torch.arange(2)[None], 2)
    side = parity.Side("x", lambda ids: [torch.zeros(2, 3)])
    assert not parity.passed(parity.compare([probe], lambda ids: [torch.zeros(2, 4)], side, None))


class Two(nn.Module):
    """An embedding-like weight outside, blocks inside, one of them shared with the outside."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, device="meta")
        self.blocks = nn.ModuleList(nn.Linear(4, 4, device="meta") for _ in range(3))
        self.last = nn.Linear(4, 4, device="meta")
        self.last.weight = self.first.weight

    def forward(self, x):
        for layer in (self.first, *self.blocks, self.last):
            x = layer(x)
        return x


def test_one_block_is_in_memory_at_a_time():
    model, weights, held = Two(), {}, []
    for name, parameter in model.named_parameters():
        weights[name] = torch.randn(parameter.shape, dtype=torch.bfloat16)

    def read(name):
        if name.endswith("weight") and "blocks" in name:
            held.append(sum(not block.weight.is_meta for block in model.blocks))
        return weights[name]

    whole = Two().to_empty(device="cpu")
    whole.last.weight = whole.first.weight
    whole.load_state_dict({k: v.float() for k, v in weights.items()} | {"last.weight": weights["first.weight"].float()})
    x = torch.randn(2, 4)
    with torch.no_grad(), parity.stream_blocks(model, list(model.blocks), read):
        for _ in range(2):
            torch.testing.assert_close(model(x), whole(x), rtol=0, atol=0)
            assert all(block.weight.is_meta for block in model.blocks)
    assert held == [0] * 6
    assert model.last.weight is model.first.weight


OTHER_SIZES = [
    ("llama_gqa", {"vocab_size": 102}),
    ("llama_gqa", {"num_attention_heads": 2, "head_dim": 16}),
    ("llama_gqa", {"head_dim": 16}),
    ("llama_gqa", {"num_key_value_heads": 4}),
    ("llama_gqa", {"intermediate_size": 96}),
    ("gpt_neox", {"num_attention_heads": 2}),
    ("gpt_neox", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}}),
]


@pytest.mark.parametrize(("kind", "changes"), OTHER_SIZES)
def test_verify_wants_two_of_one_size(model, import_run, copy, kind, changes):
    run, folder = import_run(model(kind)), copy(kind)
    models.edit(folder, **changes)
    with pytest.raises(UserError, match="E-IOP-10"):
        exporting.verify_export(VerifyConfig(run=str(run), against=str(folder)))


def test_an_export_says_no_path_of_this_machine(model, import_run, export_run, tmp_path):
    out = export_run(import_run(model()))
    assert not [path for path in out.iterdir() if str(tmp_path.parent).encode() in path.read_bytes()]


def test_verify_wants_a_folder_of_a_model(model, import_run, tmp_path):
    with pytest.raises(UserError, match="E-IOP-01"):
        exporting.verify_export(VerifyConfig(run=str(import_run(model())), against=str(tmp_path)))


def test_a_folder_is_compared_with_its_own_class(model, import_run, monkeypatch):
    """Even where no class of transformers could be written: our own form would agree with whatever we misread."""

    def refuse(*_):
        raise NotTheSame("frequencies that no class has")

    monkeypatch.setattr(forms, "native_config", refuse)
    record = json.loads((import_run(model()) / "parity.json").read_text())
    assert record["against"].startswith("LlamaForCausalLM")


def test_scores_are_capped_whatever_a_class_says_of_its_kernels(monkeypatch):
    """Up to transformers 5.20 Gemma 2 says that it has sdpa, which caps none."""
    cls = transformers.Gemma2ForCausalLM
    monkeypatch.setattr(cls, "_supports_sdpa", True)
    assert transformers_side._attention(cls) == "eager"
    assert transformers_side._attention(transformers.Gemma3ForCausalLM) == "sdpa"
