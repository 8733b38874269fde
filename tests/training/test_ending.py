from dataclasses import replace

from coca_train.settings import load
from coca_train.training import ending


def test_a_report_on_nothing_is_a_warning_and_no_error(tmp_path, capsys):
    config = load([]).config
    sources = {name: replace(source, valid_path=None) for name, source in config.data.sources.items()}
    config = replace(config, data=replace(config.data, sources=sources))
    assert ending.evaluate(ending.Finished(config, tmp_path, tmp_path, None, 1, ""), None) is None  # type: ignore[arg-type]
    assert "WARNING: no extrapolation report: E-EVAL-04 data.sources: no source has" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
