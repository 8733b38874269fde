"""`python -m coca_train compare`, for real: trained, checked, drawn, and nothing trained twice."""

import json

import pytest


@pytest.mark.slow
def test_schemes_with_and_without_an_end_are_compared_and_not_trained_again(cold, tmp_path):
    words = ["schemes=rope learned transformer_xl", "engine=local", "eval.extrapolation.attention_patterns=[segments]"]
    first = cold(*words, verb="compare")
    assert first.returncode == 0, first.stderr
    assert "transformer_xl: position.memory_len=0" in first.stderr
    assert "not measured: learned, plain at 128: learned has 32 positions" in first.stdout
    folder = tmp_path / "runs" / "comparisons" / "rope-vs-learned-vs-transformer_xl"
    saved = json.loads((folder / "results.json").read_text())
    assert len(saved["checks"]) == 4
    for facts in saved["runs"].values():
        assert facts["parameters"] > 0
        assert facts["ms_per_step"] > 0
        assert facts["peak_memory_mib"] > 50
    for picture in ("perplexity-curves-all", "loss-by-position-compared-all"):
        assert (folder / "figures" / f"{picture}.png").stat().st_size > 10_000
    assert "ms a step" in (folder / "report.html").read_text()
    again = cold(*words, verb="compare")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("finished before") == 3
    assert again.stdout == first.stdout
