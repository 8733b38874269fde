"""The same cells of the same model: its report, `evaluate` on the run, the index, `compare` and Model.reach() say the
same of it, and what the report measured is not measured again."""

import html
import json

from coca_train.api import open_model


def test_whoever_is_asked_the_same_is_said(run, server, tmp_path, monkeypatch):
    words = ["eval.extrapolation.rope_scalings=[plain]", "eval.extrapolation.max_documents=24", "eval.sample_tokens=0"]
    for name, scheme in (("one", "coca"), ("other", "rope")):
        ended = run(*words, f"run.name={name}", f"position={scheme}")
        assert ended.code == 0, ended.err
    runs = tmp_path / "runs"
    report = json.loads((runs / "one" / "report" / "summary.json").read_text())
    (verdict,) = report["verdicts"]
    assert report["finding"][0].startswith("Perplexity")

    evaluated = server.command(
        ["coca_train", "evaluate", f"checkpoint={runs}/one", "grid.lengths=[1x,4x]"], cwd=tmp_path
    )
    assert evaluated[0].code == 0, evaluated[0].err
    assert not list((tmp_path / "evaluations" / "cells").rglob("*.json"))  # all of it was found in the report's
    again = json.loads((tmp_path / "evaluations" / "perplexity" / "summary.json").read_text())
    assert (again["finding"], again["verdicts"]) == (report["finding"], report["verdicts"])
    assert " ".join(report["finding"]) in evaluated[0].text

    compared = server.command(
        ["coca_train", "compare", f"runs={runs}/one,{runs}/other", f"run.root={runs}"], cwd=tmp_path
    )
    assert compared[0].code == 0, compared[0].text
    both = json.loads((runs / "comparisons" / "one-vs-other" / "summary.json").read_text())
    assert verdict in both["verdicts"] and len(both["verdicts"]) == 2

    index = html.unescape((runs / "index.html").read_text())
    assert " ".join(report["finding"]) in index and " ".join(both["finding"]) in index

    monkeypatch.chdir(tmp_path)
    assert open_model(runs / "one").reach(32, 128) == report["finding"]
