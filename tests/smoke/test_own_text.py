"""`data.path` with several ranks: one makes the data, the others wait, and all learn of what is wrong."""

from tests.data_prep.test_folder import mixed

WORDS = [
    "model.n_layers=1", "model.d_model=32", "model.n_heads=2", "model.d_ff=64", "train.seq_len=32", "train.max_steps=2",
    "train.micro_batch_size=1", "train.global_batch_size=2", "optim.warmup_steps=1", "eval.max_tokens=64",
    "eval.sample_tokens=0", "eval.extrapolation.enabled=false", "engine.dtype=fp32",
]  # fmt: skip


def test_rank_0_makes_the_data_and_tells_all_of_what_is_wrong(server, tmp_path):
    (tmp_path / "here").mkdir()
    mixed(tmp_path / "my")
    command = ["coca_train", *WORDS, "data.path=../my"]
    ended = server.command(command, 2, cwd=tmp_path / "here")
    assert [rank.code for rank in ended] == [0, 0], ended[0].text
    assert len(list((tmp_path / "here" / "data").rglob("manifest.json"))) == 1

    (tmp_path / "my" / "bad.jsonl").write_text('{"body": "x"}\n')
    ended = server.command([*command, "run.name=other"], 2, cwd=tmp_path / "here")
    assert [rank.code for rank in ended] == [3, 3], ended[0].text
    assert "E-RAW-06" in ended[0].text
