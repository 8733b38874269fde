from contextlib import nullcontext
from types import SimpleNamespace

from coca_train.settings import load
from coca_train.training import ending as final


def test_a_report_on_nothing_is_a_warning_and_no_error(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(final, "held_out_documents", lambda config, windows: {})
    runner = SimpleNamespace(eval_module=lambda: nullcontext(None))
    final.report_extrapolation(load([]).config, tmp_path, runner, None)  # type: ignore[arg-type]
    assert "WARNING: no extrapolation report: no held-out document" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
