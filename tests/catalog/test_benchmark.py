"""`python -m benchmarks.schemes`: that every case runs, what is said about the numbers, what ends in an error."""

import json
import math
import sys
from dataclasses import asdict

import pytest
import torch

from benchmarks import cases, complexity, measure, schemes
from benchmarks.measure import MIB, Alone
from coca_train.catalog.entries import entries

TINY = cases.Setup("cpu", "fp32", attention_heads=2, attention_head_dim=8)
EVERY = schemes.cases(list(entries("position")), list(entries("attention_pattern")))


def grown(power, at_1k=MIB):
    """Memory that grows with T to a power, at 1k, 4k and 16k."""
    return {1024 * 4**i: Alone(round(at_1k * 4 ** (power * i)), 0.5 * 4**i) for i in range(3)}


def test_every_scheme_every_attention_pattern_and_the_reference_are_measured():
    assert EVERY[: len(entries("position"))] == list(entries("position"))
    assert {name.split(":")[1] for name in EVERY if ":" in name} == set(entries("attention_pattern")) - {"causal"} | {
        "eager"
    }


@pytest.mark.parametrize("name", EVERY)
def test_every_case_can_be_repeated(name):
    work = cases.KINDS["scheme"](f"{name}/24", TINY)
    work()
    work()


@pytest.mark.parametrize("name", ["t5/core/24", "transformer_xl/layer/24", "disentangled/core/24"])
def test_attention_alone_can_be_repeated_though_its_tables_are_made_once(name):
    work = cases.KINDS["attention"](name, TINY)
    work()
    work()


def test_a_case_is_a_whole_layer(monkeypatch):
    """Embeddings and parameters get gradients anew in each repetition, and the kernel asked for runs."""
    layers, run = [], []
    build = cases._attention
    monkeypatch.setattr(cases, "_attention", lambda *args: layers.append(build(*args)) or layers[-1])
    monkeypatch.setitem(cases.KERNELS, "eager", lambda *args: run.append(args) or cases.KERNELS["blocked"](*args))
    work = cases.scheme("shaw:eager/24", TINY)
    work()
    first = {name: p.grad.clone() for name, p in layers[0].named_parameters()}
    work()
    assert {"q.weight", "position.keys", "position.values"} <= set(first)
    assert all(torch.equal(p.grad, first[name]) for name, p in layers[0].named_parameters())
    assert len(run) == 2


def test_windows_do_not_grow_with_the_length():
    """Sinks at T = 1,100 and windows of 512 tokens: two views, or the numbers would be those of rope alone."""
    seen = []
    original = cases.KERNELS["auto"]
    try:
        cases.KERNELS["auto"] = lambda parts, *rest: seen.append(parts) or original(parts, *rest)
        cases.scheme("rope:sinks/1100", TINY)()
    finally:
        cases.KERNELS["auto"] = original
    assert [part.layout.rule.window for part in seen[0]] == [512, None]


def test_alone_measures_in_a_process_of_its_own():
    cost = measure.alone("scheme", "kerple_log/256", TINY, repeats=3)
    assert 0 < cost.seconds < 60
    assert 256 * 16 * 4 < cost.peak_bytes < 200 * MIB


@pytest.mark.parametrize(("end", "how"), [("exit 1", "exit code 1"), ("kill -9 $$", "killed by signal 9")])
def test_what_fails_alone_is_told(end, how, monkeypatch, tmp_path):
    process = tmp_path / "python"
    process.write_text(f"#!/bin/sh\necho why >&2\n{end}\n")
    process.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(process))
    with pytest.raises(RuntimeError, match=rf"scheme rope/x could not be measured \({how}\):\nwhy"):
        measure.alone("scheme", "rope/x", TINY)


def test_a_case_that_does_not_exist_fails():
    with pytest.raises(ValueError, match="x"):
        measure._child({"kind": "scheme", "name": "rope/x", "setup": asdict(TINY), "threads": 1, "repeats": 1})


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_slope(power):
    assert schemes.slope(grown(power)) == pytest.approx(power, abs=1e-4)


def test_the_slope_is_not_flattered_by_a_large_start():
    """Flat, then linear: the last step counts, the fit is lower."""
    assert schemes.slope({1024: Alone(MIB, 1), 4096: Alone(MIB, 1), 16384: Alone(4 * MIB, 1)}) == pytest.approx(1)
    assert schemes.slope({1024: Alone(MIB, 1), 4096: Alone(4 * MIB, 1), 16384: Alone(8 * MIB, 1)}) < 1
    assert math.isnan(schemes.slope({1024: Alone(MIB, 1)}))


def test_verdict_and_table():
    results = {"rope": grown(1), "shaw": grown(1.2), schemes.REFERENCE: grown(2)}
    assert schemes.verdict(results) == "Steeper than 1.1: shaw (1.20)"
    assert "at most 1.1" in schemes.verdict({name: results[name] for name in ("rope", schemes.REFERENCE)})
    del results[schemes.REFERENCE][16384]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in schemes.table(results, [1024, 4096, 16384]).splitlines()
    ]
    assert lines[2] == ["rope", "1.0", "4.0", "16.0", "1.00", "0.500", "2.000", "8.000", "1.00"]
    assert lines[4] == ["rope:eager", "1.0", "16.0", "–", "2.00", "0.500", "2.000", "–", "1.00"]


def test_the_command(monkeypatch, tmp_path, capsys):
    """A line for each case, three files, and an exit code that says whether memory stays linear."""

    def alone(kind, name, setup, repeats, enough_s):
        length = int(name.split("/")[1])
        if name.startswith("t5"):
            raise RuntimeError("scheme t5 could not be measured (killed by signal 9):\n…")
        return Alone(length * 1000, 0.1)

    monkeypatch.setattr(schemes, "alone", alone)
    words = ["--lengths", "64", "128", "--attention-patterns", "sinks", "--out", str(tmp_path), "--schemes", "rope"]
    assert schemes.main(words) == 0
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 2 * 3
    assert "| rope:sinks |" in captured.out
    assert {path.name for path in tmp_path.iterdir()} == {f"schemes-cpu.{end}" for end in ("md", "json", "png")}
    kept = json.loads((tmp_path / "schemes-cpu.json").read_text())
    assert kept["found"]["rope"]["128"] == {"peak_bytes": 128_000, "seconds": 0.1}
    assert schemes.main([*words, "t5"]) == 1
    assert "* scheme t5 could not be measured (killed by signal 9):" in capsys.readouterr().out


def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert schemes.main(["--device", "cuda"]) == 0
    assert "no CUDA device" in capsys.readouterr().err


def test_names_that_do_not_exist(capsys):
    with pytest.raises(SystemExit):
        schemes.main(["--schemes", "rope", "alibbi"])
    assert "there is no 'alibbi'" in capsys.readouterr().err


STEPS = sorted({step.name for step in complexity.STEPS.values() if step.kind == "step"})


@pytest.mark.parametrize("name", STEPS)
def test_every_step_of_cocas_table_6_has_the_numbers_it_is_named_for(name):
    n_tokens, heads, width = 24, TINY.attention_heads, TINY.attention_head_dim
    result = cases.step(f"{name}/{n_tokens}", TINY)()
    numbers = sum(each.numel() for each in result) if isinstance(result, list) else result.numel()
    features, scores = n_tokens * heads * width, heads * n_tokens**2
    by_hand = {"projections": 3 * features, "half": features // 2, "relu": features, "rotation": 2 * features}
    assert numbers == by_hand.get(name, scores * width if name == "expanded" else scores)


def test_contracting_is_what_expanding_comes_to():
    """Eq. 19: the expanded product, weighed with the turned query and summed over the width, is the contracted one."""
    products_HTSD, contracted_HTS = (cases.step(f"{name}/24", TINY)() for name in ("expanded", "scores_coca"))
    torch.manual_seed(0)  # as the steps draw their queries, turned queries and keys
    _, turned_HTD, _ = (torch.randn(2, 24, 8) for _ in range(3))
    torch.testing.assert_close((products_HTSD * turned_HTD[:, :, None]).sum(-1), contracted_HTS)


def test_growth_is_told_beside_the_papers():
    costs = {row: grown(2) for row in complexity.STEPS}
    assert complexity.exponent({n: one.seconds for n, one in grown(1).items()}) == pytest.approx(1)
    line = next(line for line in complexity.table(costs, [1024, 4096, 16384]).splitlines() if "| softmax " in line)
    cells = " ".join(cell.strip() for cell in line.strip("|").split("|"))
    assert cells == "softmax both N² 1.00 N² 2.00 500.00 2,000.00 8,000.00 1.0 16.0 256.0"
    assert "at N = 16,384: time 1.00, memory 1.00 (the paper" in complexity.verdict(costs)
