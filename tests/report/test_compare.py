import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

from coca_train import cli, compare
from coca_train.config.errors import DataError, UserError
from coca_train.config.load import load
from coca_train.evals.extrapolation import Cell, Extrapolation
from coca_train.evals.perplexity import summarise
from coca_train.report import comparison
from coca_train.report.pages import write_extrapolation


def result(run):
    cells = tuple(
        Cell(source="text", frequencies="plain", window=w, result=summarise(np.array([[300.0, 100], [310.0, 100]])))
        for w in (32, 64)
    )
    return Extrapolation(
        run=run,
        scheme=run,
        training_window=32,
        stride=32,
        windows=(32, 64),
        frequencies=("plain",),
        sources=("text",),
        document_tokens=65,
        seed=0,
        cells=cells,
    )


def shard(path, shapes):
    header = {f"model/{k}": {"dtype": "F32", "shape": list(s), "data_offsets": [0, 0]} for k, s in shapes.items()}
    text = json.dumps({"__metadata__": {}, **header, "exp_avg/x": {"shape": [1]}}).encode()
    path.parent.mkdir(parents=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text)


@pytest.fixture
def runs(tmp_path):
    """Two comparable finished runs; coca's key projection has another shape."""
    made = {}
    for name, key_rows in (("rope", 8), ("coca", 4)):
        run_dir = made[name] = tmp_path / name
        write_extrapolation(result(name), run_dir / "report")
        tree = {"run": {"name": name, "seed": 1}, "position": {"scheme": name}, "optim": {"lr": 0.1}}
        (run_dir / "config.yaml").write_text(yaml.safe_dump(tree))
        digests = {"embed.weight": "e", "blocks.0.attention.k.weight": f"k{key_rows}", "blocks.0.mlp.up.weight": "u"}
        (run_dir / "run.json").write_text(json.dumps({"init_digests": digests}))
        records = [{"step": s, "loss": 4.0 - s, "tokens_per_s": 10.0 * s, "batch_digest": f"b{s}"} for s in (1, 2, 3)]
        records.append({"step": 3, "valid/text": 0.7})
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        shapes = {
            "embed.weight": (16, 8),
            "blocks.0.attention.k.weight": (key_rows, 8),
            "blocks.0.mlp.up.weight": (32, 8),
        }
        shard(run_dir / "checkpoints" / "step-00000003" / "state-00000-of-00001.safetensors", shapes)
    return made


def edit(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_comparable_runs(runs, tmp_path, capsys):
    compare.compare(runs, tmp_path)
    out, err = capsys.readouterr()
    assert "identical batches at all 3 common logged steps, the last one 3" in err
    assert "identical for 2 of 3 parameters; not shared, because of another shape: k" in err
    assert [line.split("|")[1].strip() for line in out.strip().splitlines()[2:4]] == ["rope", "coca"]
    saved = json.loads((tmp_path / "comparison.json").read_text())
    assert len(saved["checks"]) == 4
    assert saved["runs"]["coca"]["loss"] == 1.0
    assert saved["runs"]["coca"]["tokens_per_s"] == 20.0
    assert saved["runs"]["coca"]["valid/text"] == 0.7
    assert (tmp_path / "comparison.png").stat().st_size > 10_000


def other_seed(run_dir):
    tree = yaml.safe_load((run_dir / "config.yaml").read_text())
    tree["run"]["seed"] = 2
    (run_dir / "config.yaml").write_text(yaml.safe_dump(tree))


def other_lr(run_dir):
    tree = yaml.safe_load((run_dir / "config.yaml").read_text())
    tree["optim"]["lr"] = 0.2
    (run_dir / "config.yaml").write_text(yaml.safe_dump(tree))


def other_batch(run_dir):
    path = run_dir / "metrics.jsonl"
    path.write_text(path.read_text().replace('"b2"', '"bx"'))


def fewer_steps(run_dir):
    path = run_dir / "metrics.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:2]) + "\n")


def other_weights(run_dir):
    edit(run_dir / "run.json", lambda d: d["init_digests"].update({"blocks.0.mlp.up.weight": "x"}))


def other_text(run_dir):
    edit(run_dir / "report" / "extrapolation.json", lambda d: d["cells"][0]["result"].update(n_tokens=3))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (other_seed, "section seed of rope and coca differ"),
        (other_lr, "section optim of rope and coca differ"),
        (other_batch, "other batches at step 2"),
        (fewer_steps, "ended at different steps"),
        (other_weights, "blocks.0.mlp.up.weight of rope and coca differ"),
        (other_text, "scored on other windows or tokens"),
    ],
)
def test_what_differs_is_found_and_nothing_is_written(runs, tmp_path, damage, said):
    damage(runs["coca"])
    with pytest.raises(DataError, match=said):
        compare.compare(runs, tmp_path)
    assert not (tmp_path / "comparison.png").exists()


def test_a_resumed_run_which_logged_one_step_more_can_be_compared(runs, tmp_path):
    path = runs["coca"] / "metrics.jsonl"
    path.write_text('{"step": 0, "batch_digest": "only here"}\n' + path.read_text())
    compare.compare(runs, tmp_path)
    assert (tmp_path / "comparison.png").exists()


def test_runs_without_recorded_digests_are_not_called_equal(runs):
    for run_dir in runs.values():
        path = run_dir / "metrics.jsonl"
        path.write_text(path.read_text().replace("batch_digest", "other"))
    assert comparison.same_batches(runs) == ("data order: rope recorded no batch digests", True)


def test_unfinished_runs_are_refused(runs, tmp_path):
    (runs["coca"] / "report" / "extrapolation.json").unlink()
    with pytest.raises(UserError, match="no extrapolation report"):
        compare.compare(runs, tmp_path)


def test_command_line():
    request = compare.read(["schemes=rope, coca", "train.max_steps=3", "run.root=/x", "--debug"])
    assert request == compare.Request(["rope", "coca"], [], "/x", ["train.max_steps=3"])
    assert compare.read([]).schemes == ["rope", "alibi", "coca", "coca_strict"]
    assert compare.read(["runs=a,b"]).runs == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["position=rope"], "compare sets this itself"),
        (["run.name=x"], "compare sets this itself"),
        (["schemes="], "one or more"),
        (["schemes=rope,rope"], "rope is there twice"),
        (["schemes=rope,coka"], "coka"),
        (["schemes=rope", "train.max_step=3"], "max_step"),
        (["schemes=rope", "eval.extrapolation.enabled=false"], "Fix: leave it true"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(words, said, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(compare, "run_child", lambda command: pytest.fail("trained"))
    assert cli.run(compare._main, [*words, f"run.root={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_trains_in_turn_skips_the_finished_and_stops_with_the_child_s_code(monkeypatch, tmp_path, capsys):
    commands = []

    def child(command):
        commands.append(command)
        return 75 if "position=coca" in command else 0

    monkeypatch.setattr(compare, "run_child", child)
    monkeypatch.setattr(compare, "finished", lambda run_dir, loaded: loaded.config.position.scheme == "rope")
    words = ["schemes=rope,alibi,coca,nope", f"run.root={tmp_path}", "train.max_steps=300"]
    assert cli.run(compare._main, words) == 75
    common = [sys.executable, "-m", "coca_train", "train.max_steps=300"]
    assert commands == [[*common, f"position={s}", f"run.name={s}", f"run.root={tmp_path}"] for s in ("alibi", "coca")]
    assert "rope: finished before" in capsys.readouterr().err


def test_finished_means_this_very_configuration_and_its_last_step(tmp_path):
    loaded = load(["train.max_steps=300"])
    (tmp_path / "report").mkdir()
    (tmp_path / "config.yaml").write_text(loaded.yaml)
    assert not compare.finished(tmp_path, loaded)
    (tmp_path / "report" / "done.json").write_text('{"step": 200}')
    assert not compare.finished(tmp_path, loaded)
    (tmp_path / "report" / "done.json").write_text('{"step": 300}')
    assert compare.finished(tmp_path, loaded)
    assert not compare.finished(tmp_path, load(["train.max_steps=300", "optim.lr=0.1"]))


CHILD = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *a: sys.exit(75))
print('up', flush=True)
time.sleep(30)
"""
PARENT = """
import sys
from coca_train.compare import run_child
sys.exit(run_child([sys.executable, '-c', sys.argv[1]]))
"""


def test_sigterm_reaches_the_training():
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        begin = time.monotonic()
        os.kill(parent.pid, signal.SIGTERM)
        assert parent.wait(20) == 75
        assert time.monotonic() - begin < 10


def test_a_killed_child_is_no_success():
    assert compare.run_child([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137
