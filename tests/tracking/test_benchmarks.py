import json
import re

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks import cases, measure, passkey, run

TINY = cases.Setup(
    "cpu", "fp32", vocab_size=128, seq_len=16, batch=1, attention_tokens=32, prompt_tokens=4, new_tokens=3
)


def test_the_peer_has_the_same_size_and_the_kernel_asked_for():
    ours = cases._model("ours/rope", TINY)
    for kernel in ("sdpa", "eager"):
        peer = cases._model(f"transformers/{kernel}", TINY)
        assert peer.config._attn_implementation == kernel
        assert peer.config.rope_parameters["partial_rotary_factor"] == 1.0
        assert sum(p.numel() for p in peer.parameters()) == sum(p.numel() for p in ours.parameters())


def test_the_plain_gpt_has_our_size_but_for_its_table_of_positions():
    ours, plain = (sum(p.numel() for p in cases._model(name, TINY).parameters()) for name in ("ours/rope", "plain/gpt"))
    assert plain == ours + TINY.seq_len * 256
    changed = cases._model("plain/gpt", TINY).eval()
    before, after = (changed(torch.tensor([[1, 2, 3, last]])) for last in (4, 5))
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3], after[:, 3])


def test_the_training_steps_train_on_the_same_loss():
    tokens = torch.randint(128, (1, 17), generator=torch.Generator().manual_seed(0))
    for name in ("ours/rope", "transformers/sdpa", "plain/gpt"):
        model = cases._model(name, TINY).eval()
        logits = model(tokens[:, :-1])
        logits = logits.logits if name.startswith("transformers") else logits
        expected = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:])
        assert cases._loss(name, model, tokens).detach().item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("training", "ours/coca"),
        ("training", "transformers/eager"),
        ("training", "plain/gpt"),
        ("decoding", "ours/coca"),
        ("decoding", "transformers/sdpa"),
        ("attention", "coca_strict/core/32"),
        ("attention", "alibi/layer/32"),
        ("long_forward", "coca/64"),
    ],
)
def test_every_kind_of_work_can_be_repeated(kind, name):
    work = cases.KINDS[kind](name, TINY)
    work()
    work()


def test_competitors_take_turns():
    order = []
    works = {name: (lambda name=name: order.append(name)) for name in "ab"}
    seconds = measure.interleaved_seconds(works, TINY, rounds=3)
    assert order == ["a", "a", "b", "b", *"ababab"]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}


def test_ratios_are_taken_turn_by_turn():
    assert measure.median_ratio([1.0, 4.0, 3.0], [1.0, 2.0, 4.0]) == (1.0, 0.75, 2.0)


def test_table():
    row = run.row("what", "coca/core/8", "rope/core/8", {"coca/core/8": [1.0], "rope/core/8": [2.0]}, 2**21, 2**20, 100)
    assert row["time_ratio"] == 0.5
    assert row["memory_ratio"] == 2.0
    assert row["tokens_per_s"] == 100.0
    assert "0.50 (0.50-0.50)" in run.table([row])


@pytest.mark.slow
def test_memory_is_what_the_case_holds():
    setup = cases.Setup("cpu", "fp32", attention_tokens=8192)
    peak = measure.peak_bytes("attention", "rope/core/512", setup)
    inputs = 3 * 8192 * setup.attention_heads * setup.attention_head_dim * 4
    assert 2 * inputs < peak < 16 * inputs  # inputs and their gradients, and what lies between


def test_everybody_answers_the_same_prompts_alike(tmp_path, capsys):
    words = ["--device", "cpu", "--model", "neox_tiny", "--length", "400", "--cases", "3", "--new-tokens", "3"]
    passkey.main([*words, "--plain-cases", "2", "--out", str(tmp_path / "out.json")])
    out = capsys.readouterr().out
    sizes = re.search(r"3 prompts of (\d+) tokens, 3 new ones each", out)
    assert sizes and 400 - 90 < int(sizes[1]) <= 400  # a filler and its line's end are 90 bytes
    assert out.count(" 2 of 2 |") == 4
    seconds = json.loads((tmp_path / "out.json").read_text())["seconds_a_case"]
    assert f"Ours: {seconds['plain loop'] / seconds['ours']:.1f} x the plain loop" in out


def test_the_passkey_table():
    text = passkey.table({"ours": 0.5, "plain loop": 6.0}, {"ours": "1 of 1", "plain loop": "1 of 1"})
    assert "| plain loop |     6.00 |                          12.0 |" in text
