"""`python -m benchmarks.passkey`: everybody answers the same prompts alike, and its arithmetic."""

import json
import re

from benchmarks import passkey


def test_everybody_answers_alike(tmp_path, capsys):
    words = ["--device", "cpu", "--model", "neox_tiny", "--length", "400", "--cases", "3", "--new-tokens", "3"]
    passkey.main([*words, "--plain-cases", "2", "--out", str(tmp_path / "out.json")])
    out = capsys.readouterr().out
    sizes = re.search(r"3 prompts of (\d+) tokens, 3 new ones each", out)
    assert sizes and 400 - 90 < int(sizes[1]) <= 400  # a filler and its line's end are 90 bytes
    assert out.count(" 2 of 2 |") == 4
    seconds = json.loads((tmp_path / "out.json").read_text())["seconds_a_case"]
    assert f"Ours: {seconds['plain loop'] / seconds['ours']:.1f} x the plain loop" in out


def test_the_table():
    text = passkey.table({"ours": 0.5, "plain loop": 6.0}, {"ours": "1 of 1", "plain loop": "1 of 1"})
    assert "| plain loop |     6.00 |                          12.0 |" in text
