"""`python -m coca_train compare`, for real: trained, checked, drawn, and nothing trained twice."""

import json
import subprocess

import pytest


@pytest.mark.slow
def test_schemes_with_and_without_an_end_are_compared_and_not_trained_again(command, environment, tmp_path):
    words = command("schemes=rope learned transformer_xl", "engine=local", "eval.extrapolation.visibilities=[segments]")
    words[words.index("coca_train")] = "coca_train.compare"

    def go():
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)

    first = go()
    assert first.returncode == 0, first.stderr
    assert "transformer_xl: position.memory_len=0" in first.stderr
    assert "not measured: learned, plain at 128: learned has 32 positions" in first.stdout
    runs = tmp_path / "runs"
    made = runs / "comparison"
    saved = json.loads((made / "results.json").read_text())
    assert len(saved["checks"]) == 4
    for facts in saved["runs"].values():
        assert facts["parameters"] > 0
        assert facts["ms_per_step"] > 0
        assert facts["peak_memory_mib"] > 50
    for picture in ("perplexity-curves-all", "loss-by-position-compared-all"):
        assert (made / "figures" / f"{picture}.png").stat().st_size > 10_000
    assert "ms a step" in (made / "report.html").read_text()
    again = go()
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("finished before") == 3
    assert again.stdout == first.stdout
