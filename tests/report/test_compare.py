"""The comparison of finished runs: what must be the same, what may be missing, what is refused."""

import json
import os
import shutil
from dataclasses import asdict

import pytest
import torch
import yaml

from coca_train.checkpoint import manifest
from coca_train.checkpoint.format import ShardWriter
from coca_train.commands import compare, main
from coca_train.evaluation import comparison
from coca_train.evaluation.results import Evaluation
from coca_train.runtime.durable import SEAL, sealed, write_json
from coca_train.runtime.errors import DataError, UserError
from coca_train.training.reach import SETTINGS
from tests.evaluation.grids import evaluation, measured
from tests.report.support import scored


def result(run, windows=(32, 64)):
    """An evaluation at windows 32 and 64; those not in `windows` have a reason."""
    cells = [scored(run, "plain", w, 3.0 if w in windows else None, stride=32) for w in (32, 64)]
    return evaluation("perplexity", asdict(SETTINGS), [measured(run)], (32, 64), cells)


def write_result(run_dir, evaluation):
    write_json(run_dir / "report" / "results.json", evaluation.to_json())


def checkpoint(folder, shapes):
    """The only shard of a checkpoint, and its manifest."""
    folder.mkdir(parents=True)
    path = folder / manifest.shard_name(0, 1)
    spec = {**{f"model/{name}": shape for name, shape in shapes.items()}, "exp_avg/x": (1,)}
    writer = ShardWriter(path, spec, {})
    for name, shape in spec.items():
        writer.write(name, torch.zeros(shape))
    record = {"name": path.name, "rank": 0, **writer.finish()}
    writer.close()
    body = {
        "format": manifest.FORMAT,
        "run_id": "r",
        "step": manifest.step_of(folder),
        "world_size": 1,
        "zero_stage": 0,
    }
    body |= {"dtype": "fp32", "trainable": list(shapes), "model_digest": "", "data_fingerprint": {}, "counters": {}}
    (folder / manifest.NAME).write_bytes(manifest.encode(body | {"progress": {}, "files": [record]}))


def compared(root):
    """Where these two lie."""
    return root / "comparisons" / "rope-vs-coca"


@pytest.fixture
def runs(tmp_path):
    """Two comparable finished runs; coca's key projection has another shape."""
    folders = {}
    for name, key_rows in (("rope", 8), ("coca", 4)):
        run_dir = folders[name] = tmp_path / name
        write_result(run_dir, result(name))
        tree = {"run": {"name": name, "seed": 1}, "position": {"scheme": name}, "optim": {"lr": 0.1}}
        tree |= {"train": {"seq_len": 32, "global_batch_size": 4}, "visibility": {"name": "causal"}, "format": 2}
        (run_dir / "config.yaml").write_text(yaml.safe_dump(tree))
        digests = {"embed.weight": "e", "blocks.0.attention.k.weight": f"k{key_rows}", "blocks.0.mlp.up.weight": "u"}
        (run_dir / "run.json").write_text(json.dumps({"init_digests": digests}))
        records = [{"step": s, "loss": 4.0 - s, "tokens_per_s": 10.0 * s, "batch_digest": f"b{s}"} for s in (1, 2, 3)]
        records[1]["peak_memory_mib"] = 512.5
        records.append({"step": 3, "valid/text": 0.7})
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        shapes = {
            "embed.weight": (16, 8),
            "blocks.0.attention.k.weight": (key_rows, 8),
            "blocks.0.mlp.up.weight": (32, 8),
        }
        checkpoint(run_dir / "checkpoints" / "step-00000003", shapes)
    return folders


def read(runs):
    return {name: comparison.read_run(run_dir) for name, run_dir in runs.items()}


def edit(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(sealed(data) if data.pop(SEAL, None) else data))


def test_comparable_runs(runs, tmp_path, capsys):
    compare.compare(runs, tmp_path, "compare")
    out, err = capsys.readouterr()
    assert "identical batches at all 3 common logged steps, the last one 3" in err
    assert "identical for 2 of 3 parameters; not shared, because of another shape or only in some: k" in err
    assert "but for the position scheme\n" in err
    rows = [line.split("|")[1].strip() for line in out.splitlines() if line.startswith("|")]
    assert rows == ["model", "-----", "RoPE", "CoCA", "model", "-----", "rope", "coca"]
    saved = json.loads((compared(tmp_path) / "results.json").read_text())
    whole = Evaluation.from_json(saved["evaluation"])
    assert [(s.name, s.variants) for s in whole.subjects] == [("rope", ("plain",)), ("coca", ("plain",))]
    assert len(whole.cells) == 4
    assert len(saved["checks"]) == 4
    assert saved["runs"]["coca"]["loss"] == 1.0
    assert saved["runs"]["coca"]["tokens_per_s"] == 20.0
    assert saved["runs"]["coca"]["ms_per_step"] == 1000 * 32 * 4 / 20
    assert saved["runs"]["coca"]["peak_memory_mib"] == 512.5
    assert saved["runs"]["coca"]["parameters"] == 16 * 8 + 4 * 8 + 32 * 8
    assert saved["runs"]["coca"]["valid/text"] == 0.7
    for picture in ("perplexity-curves-text", "loss-by-position-text", "loss-by-position-compared-text"):
        assert (compared(tmp_path) / "figures" / f"{picture}.png").stat().st_size > 10_000
    assert str(compared(tmp_path) / "report.html") in err
    page = (compared(tmp_path) / "report.html").read_text()
    assert "identical batches at all 3 common logged steps" in page
    assert "ms a step" in page


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


def other_windows(run_dir):
    edit(run_dir / "report" / "results.json", lambda d: d.update(points=[32, 128]))


def unexplained(run_dir):
    edit(run_dir / "report" / "results.json", lambda d: d["cells"].pop())


def other_text(run_dir):
    edit(run_dir / "report" / "results.json", lambda d: d["cells"][0]["result"]["sources"]["text"].update(n_tokens=3))


def other_tokenizer(run_dir):
    def edited(tree):
        tree["cells"][0]["result"]["sources"]["text"].update(predictions="others")

    edit(run_dir / "report" / "results.json", edited)


@pytest.mark.parametrize(
    ("damage", "phrase"),
    [
        (other_seed, "seeds: rope with 1 and coca with 2 are not the same"),
        (other_lr, "section optim of rope and coca differ"),
        (other_batch, "other batches at step 2"),
        (fewer_steps, "ended at different steps"),
        (other_weights, "blocks.0.mlp.up.weight of rope and coca differ"),
        (other_text, "scored on other tokens"),
        (other_tokenizer, "scored on other tokens"),
        (other_windows, "scored on other windows or texts"),
        (unexplained, "coca has no result for plain at window 64"),
    ],
)
def test_what_differs_is_found_and_nothing_is_written(runs, tmp_path, damage, phrase):
    damage(runs["coca"])
    with pytest.raises(DataError, match=phrase):
        compare.compare(runs, tmp_path, "compare")
    assert not (tmp_path / "comparisons").exists()


def seed(run_dir, number, like):
    """Another seed of the run `like`, in run_dir."""
    shutil.copytree(like, run_dir)
    tree = yaml.safe_load((like / "config.yaml").read_text())
    tree["run"] = {"name": run_dir.name, "seed": number}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(tree))
    for name, letter in (("metrics.jsonl", "b"), ("run.json", "u")):
        path = run_dir / name
        path.write_text(path.read_text().replace(f'": "{letter}', f'": "{letter}{number}'))
    write_result(run_dir, result(run_dir.name))
    return run_dir


def test_seeds_of_a_model_are_found_and_are_one_row(runs, tmp_path, capsys):
    both = {**runs, **{f"{name}-b": seed(tmp_path / f"{name}-b", 2, like) for name, like in runs.items()}}
    compare.compare(both, tmp_path, "compare")
    out, err = capsys.readouterr()
    rows = [line.split("|")[1].strip() for line in out.splitlines() if line.startswith("|")]
    assert rows == ["model", "-----", "RoPE", "CoCA", "model", "-----", "rope", "coca"]
    assert "inconclusive, 2 of the 20" in out
    assert "checked   seeds: each model with 1, 2" in err
    assert "identical batches at all 3 common logged steps, the last one 3 (seed 2)" in err
    saved = json.loads((compared(tmp_path) / "results.json").read_text())
    assert saved["evaluation"]["seeds"] == {"rope": {"rope": "1", "rope-b": "2"}, "coca": {"coca": "1", "coca-b": "2"}}
    assert [s["name"] for s in saved["evaluation"]["subjects"]] == list(both)  # each seed's own figures are kept
    assert set(saved["runs"]) == set(both)
    compare.compare(both, tmp_path, "compare", pool=False)
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert rows == ["model", "------", "RoPE", "CoCA", "rope-b", "coca-b", "model", "------", *both]


def test_models_need_the_same_seeds(runs, tmp_path):
    with pytest.raises(DataError, match="seeds: rope with 1, 2 and coca with 1 are not the same"):
        compare.compare({**runs, "rope-b": seed(tmp_path / "rope-b", 2, runs["rope"])}, tmp_path, "compare")


def test_one_training_twice_is_no_second_seed(runs, tmp_path):
    both = {**runs, **{f"{name}-b": seed(tmp_path / f"{name}-b", 2, like) for name, like in runs.items()}}
    for name in ("metrics.jsonl", "run.json"):
        shutil.copy(runs["coca"] / name, both["coca-b"] / name)
    with pytest.raises(DataError, match="coca and coca-b are the same training of coca"):
        compare.compare(both, tmp_path, "compare")


@pytest.mark.parametrize("part", ["by_document", "predictions"])
def test_a_report_without_what_models_are_compared_by_is_of_an_older_version(part, runs, tmp_path):
    edit(
        runs["coca"] / "report" / "results.json",
        lambda d: [c["result"]["sources"]["text"].pop(part) for c in d["cells"]],
    )
    with pytest.raises(DataError, match=rf"E-REPORT-02 .*{part}.*Fix: delete it"):
        compare.compare(runs, tmp_path, "compare")


def test_a_report_that_cannot_be_read_is_not_one_of_an_older_version(runs, tmp_path):
    path = runs["coca"] / "report" / "results.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"E-REPORT-02 .*is a pipe") as refused:
        comparison._read_evaluation(path)
    assert "delete" not in str(refused.value)


def test_a_resumed_run_which_logged_one_step_more_can_be_compared(runs, tmp_path):
    path = runs["coca"] / "metrics.jsonl"
    path.write_text('{"step": 0, "batch_digest": "only here"}\n' + path.read_text())
    compare.compare(runs, tmp_path, "compare")
    assert (compared(tmp_path) / "report.html").exists()


def test_runs_without_recorded_digests_are_not_called_equal(runs):
    for run_dir in runs.values():
        path = run_dir / "metrics.jsonl"
        path.write_text(path.read_text().replace("batch_digest", "other"))
    assert comparison.same_batches(read(runs)) == ("data order: rope recorded no batch digests", True)


def test_windows_that_a_scheme_cannot_reach_may_be_absent(runs, tmp_path, capsys):
    write_result(runs["coca"], result("coca", windows=(32,)))
    compare.compare(runs, tmp_path, "compare")
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("| CoCA"))
    assert [text.strip() for text in row.split("|")[1:5]] == ["CoCA", "plain", "23.34 (20.09 to 27.11)", "–"]
    assert "not measured: coca, plain at 64: coca has 32 positions" in out
    assert "* coca, plain at 64: coca has 32 positions" in (compared(tmp_path) / "report.md").read_text()


def test_another_visibility_is_allowed_and_said(runs, tmp_path, capsys):
    tree = yaml.safe_load((runs["coca"] / "config.yaml").read_text()) | {"visibility": {"name": "sinks"}}
    (runs["coca"] / "config.yaml").write_text(yaml.safe_dump(tree))
    compare.compare(runs, tmp_path, "compare")
    assert "but for the position scheme and the visibility\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "missing", ["config.yaml", "run.json", "metrics.jsonl", "checkpoints", "report/results.json", "report", "."]
)
def test_what_is_no_finished_run_is_refused_in_one_line(runs, tmp_path, capsys, missing):
    path = runs["coca"] / missing
    path.unlink() if path.is_file() else shutil.rmtree(path)
    words = [f"runs={runs['rope']},{runs['coca']}", f"run.root={tmp_path / 'out'}"]
    assert main(["compare", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"E-RUN-22 {runs['coca']}: no ")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_finished_run_without_a_report_is_told_why(runs, tmp_path):
    (runs["coca"] / "report" / "results.json").unlink()
    (runs["coca"] / "report" / "done.json").write_text("{}")
    with pytest.raises(UserError, match="finished without perplexities by window"):
        compare.compare(runs, tmp_path, "compare")


@pytest.mark.parametrize(
    ("file", "text", "phrase"),
    [
        ("config.yaml", "{", "E-RUN-24"),
        ("config.yaml", "", "E-RUN-24"),
        ("run.json", "{", "E-RUN-24"),
        ("run.json", "{}", "E-RUN-24 .*init_digests"),
        ("checkpoints/step-00000003/state-00000-of-00001.safetensors", "short", "E-RUN-24"),
        ("report/results.json", "{", "E-REPORT-02"),
        ("report/results.json", '{"cells": [], "frequencies": []}', "E-REPORT-02 .*start the run's own"),
    ],
)
def test_damaged_records_and_those_of_other_versions_are_refused_in_one_line(runs, tmp_path, file, text, phrase):
    (runs["coca"] / file).write_text(text)
    with pytest.raises(DataError, match=phrase) as error:
        compare.compare(runs, tmp_path, "compare")
    assert "\n" not in str(error.value)
