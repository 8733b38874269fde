"""The comparison of finished runs: what must be the same, what may be missing, what is refused."""

import html
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
from coca_train.config.load import FORMAT
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
    body |= {"tensors": manifest.digest_of_spec(spec)}
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
        tree |= {
            "train": {"seq_len": 32, "global_batch_size": 4},
            "attention_pattern": {"name": "causal"},
            "format": FORMAT,
        }
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
    assert table_labels(capsys) == ["model", "RoPE", "CoCA", "model", "rope", "coca"]
    saved = json.loads((compared(tmp_path) / "results.json").read_text())
    whole = Evaluation.from_json(saved["evaluation"])
    assert [(s.name, s.variants) for s in whole.subjects] == [("rope", ("plain",)), ("coca", ("plain",))]
    assert len(whole.cells) == 4
    checks = "\n".join(saved["checks"])
    assert len(saved["checks"]) == 4
    assert "all 3 common" in checks and "2 of 3 parameters" in checks and checks.count("position scheme") == 1
    known = {"loss": 1.0, "tokens_per_s": 20.0, "ms_per_step": 1000 * 32 * 4 / 20, "peak_memory_mib": 512.5}
    known |= {"parameters": 16 * 8 + 4 * 8 + 32 * 8, "valid/text": 0.7}
    assert {key: saved["runs"]["coca"][key] for key in known} == known
    for picture in ("perplexity-curves-text", "loss-by-position-text", "loss-by-position-compared-text"):
        assert (compared(tmp_path) / "figures" / f"{picture}.png").stat().st_size > 10_000
    page = (compared(tmp_path) / "report.html").read_text()
    assert all(html.escape(check) in page for check in saved["checks"])


def edit_config(run_dir, **changes):
    tree = yaml.safe_load((run_dir / "config.yaml").read_text())
    for section, values in changes.items():
        tree[section] |= values
    (run_dir / "config.yaml").write_text(yaml.safe_dump(tree))


def edit_metrics(run_dir, change):
    path = run_dir / "metrics.jsonl"
    path.write_text(change(path.read_text()))


def edit_results(run_dir, change):
    edit(run_dir / "report" / "results.json", change)


def edit_text(run_dir, **changes):
    edit_results(run_dir, lambda d: d["cells"][0]["result"]["sources"]["text"].update(changes))


DAMAGES = {  # what differs in the second run, and what the message names
    "rope with 1 and coca with 2": lambda run: edit_config(run, run={"seed": 2}),
    "optim": lambda run: edit_config(run, optim={"lr": 0.2}),
    "step 2": lambda run: edit_metrics(run, lambda text: text.replace('"b2"', '"bx"')),
    "ended at different steps": lambda run: edit_metrics(run, lambda text: "".join(text.splitlines(True)[:2])),
    "blocks.0.mlp.up.weight": lambda run: edit(
        run / "run.json", lambda d: d["init_digests"].update({"blocks.0.mlp.up.weight": "x"})
    ),
    "other tokens": lambda run: edit_text(run, n_tokens=3),
    "scored on other tokens": lambda run: edit_text(run, predictions="others"),
    "windows": lambda run: edit_results(run, lambda d: d.update(points=[32, 128])),
    "coca has no result for plain at window 64": lambda run: edit_results(run, lambda d: d["cells"].pop()),
}


@pytest.mark.parametrize("named", DAMAGES)
def test_what_differs_is_found_and_nothing_is_written(runs, tmp_path, named):
    DAMAGES[named](runs["coca"])
    with pytest.raises(DataError, match=rf"E-CMP-01 .*{named}"):
        compare.compare(runs, tmp_path, "compare")
    assert not (tmp_path / "comparisons").exists()


def seed(run_dir, number, like):
    """Another seed of the run `like`, in run_dir."""
    shutil.copytree(like, run_dir)
    edit_config(run_dir, run={"name": run_dir.name, "seed": number})
    for name, letter in (("metrics.jsonl", "b"), ("run.json", "u")):
        path = run_dir / name
        path.write_text(path.read_text().replace(f'": "{letter}', f'": "{letter}{number}'))
    write_result(run_dir, result(run_dir.name))
    return run_dir


def with_second_seeds(runs):
    return {**runs, **{f"{name}-b": seed(like.parent / f"{name}-b", 2, like) for name, like in runs.items()}}


def table_labels(capsys):
    """The first column of the tables on the terminal, without their rules."""
    cells = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    return [cell for cell in cells if cell.strip("-")]


def test_seeds_of_a_model_are_found_and_are_one_row(runs, tmp_path, capsys):
    both = with_second_seeds(runs)
    compare.compare(both, tmp_path, "compare")
    assert table_labels(capsys) == ["model", "RoPE", "CoCA", "model", "rope", "coca"]
    saved = json.loads((compared(tmp_path) / "results.json").read_text())
    checks = "\n".join(saved["checks"])
    assert "1, 2" in checks and "last one 3 (seed 2)" in checks
    assert saved["evaluation"]["seeds"] == {"rope": {"rope": "1", "rope-b": "2"}, "coca": {"coca": "1", "coca-b": "2"}}
    assert [s["name"] for s in saved["evaluation"]["subjects"]] == list(both)  # each seed's own figures are kept
    assert set(saved["runs"]) == set(both)


def test_models_need_the_same_seeds(runs, tmp_path):
    with pytest.raises(DataError, match=r"E-CMP-01 .*1, 2 and coca with 1"):
        compare.compare({**runs, "rope-b": seed(tmp_path / "rope-b", 2, runs["rope"])}, tmp_path, "compare")


def test_one_training_twice_is_no_second_seed(runs, tmp_path):
    both = with_second_seeds(runs)
    for name in ("metrics.jsonl", "run.json"):
        shutil.copy(runs["coca"] / name, both["coca-b"] / name)
    with pytest.raises(DataError, match=r"E-CMP-01 .*coca and coca-b"):
        compare.compare(both, tmp_path, "compare")


@pytest.mark.parametrize("part", ["by_document", "predictions"])
def test_a_report_without_what_models_are_compared_by_is_of_an_older_version(part, runs, tmp_path):
    edit_results(runs["coca"], lambda d: [c["result"]["sources"]["text"].pop(part) for c in d["cells"]])
    with pytest.raises(DataError, match=rf"E-REPORT-02 .*{part}"):
        compare.compare(runs, tmp_path, "compare")


def test_a_report_that_cannot_be_read_is_not_one_of_an_older_version(runs, tmp_path):
    path = runs["coca"] / "report" / "results.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"E-REPORT-02 .*is a pipe") as refused:
        comparison._read_evaluation(path)
    assert "delete" not in str(refused.value)


def test_a_resumed_run_which_logged_one_step_more_can_be_compared(runs, tmp_path):
    edit_metrics(runs["coca"], lambda text: '{"step": 0, "batch_digest": "only here"}\n' + text)
    compare.compare(runs, tmp_path, "compare")
    assert (compared(tmp_path) / "report.html").exists()


def test_runs_without_recorded_digests_are_not_called_equal(runs):
    for run_dir in runs.values():
        edit_metrics(run_dir, lambda text: text.replace("batch_digest", "other"))
    assert comparison.same_batches(read(runs))[1]


def test_windows_that_a_scheme_cannot_reach_may_be_absent(runs, tmp_path, capsys):
    write_result(runs["coca"], result("coca", windows=(32,)))
    compare.compare(runs, tmp_path, "compare")
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("| CoCA"))
    assert [text.strip() for text in row.split("|")[1:5]] == ["CoCA", "plain", "23.34 (20.09 to 27.11)", "–"]
    assert "coca, plain at 64: coca has 32" in out
    assert "* coca, plain at 64: " in (compared(tmp_path) / "report.md").read_text()


def test_another_attention_pattern_is_allowed_and_said(runs, tmp_path, capsys):
    edit_config(runs["coca"], attention_pattern={"name": "sinks"})
    compare.compare(runs, tmp_path, "compare")
    assert "attention_pattern" in capsys.readouterr().err


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
    with pytest.raises(UserError, match=r"E-RUN-22 .*coca"):
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
        ("report/results.json", '{"cells": [], "rope_scaling": []}', "E-REPORT-02"),
    ],
)
def test_damaged_records_and_those_of_other_versions_are_refused_in_one_line(runs, tmp_path, file, text, phrase):
    (runs["coca"] / file).write_text(text)
    with pytest.raises(DataError, match=phrase) as error:
        compare.compare(runs, tmp_path, "compare")
    assert "\n" not in str(error.value)
