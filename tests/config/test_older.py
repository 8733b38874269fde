"""Runs from before a scheme could share its numbers among the layers: each layer had its own, and has."""

import json
from pathlib import Path

import pytest
import yaml

from coca_train.checkpoint.record import open_record
from coca_train.config.older import complete
from coca_train.hub import config_json
from coca_train.runtime.errors import CheckpointError
from coca_train.schedule import resolve
from coca_train.settings import load, load_saved

KINDS = "layers={pattern: [own, far], kinds: {far: {position: {scheme: kerple_power, shared: false}}}}"


def without_shared(tree: object) -> object:
    """A saved configuration as it was before the option."""
    if not isinstance(tree, dict):
        return tree
    return {key: without_shared(value) for key, value in tree.items() if key != "shared"}


def test_a_saved_configuration_is_completed_wherever_a_scheme_is_named(tmp_path: Path) -> None:
    loaded = load(["position=kerple_log", "position.shared=false", KINDS])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(without_shared(yaml.safe_load(loaded.yaml))))
    assert "shared" not in (tmp_path / "config.yaml").read_text()
    assert load_saved(tmp_path).config == loaded.config


def test_of_stages_too() -> None:
    stages = {"only": {"position": {"scheme": "transformer_xl"}}, "b": {"position": {"scheme": "rope"}}, "c": {}}
    complete(tree := {"position": {"scheme": "rope"}, "stages": stages})
    assert tree["position"] == {"scheme": "rope"}
    assert stages == {
        "only": {"position": {"scheme": "transformer_xl", "shared": False}},
        "b": {"position": {"scheme": "rope"}},
        "c": {},
    }


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["position=kerple_log"], "position.shared=false"),
        (["position=rope", KINDS.replace(", shared: false", "")], "layers.kinds.far.position.shared=false"),
    ],
)
def test_a_run_goes_on_with_the_words_that_its_refusal_names(tmp_path: Path, words: list[str], fix: str) -> None:
    def start(*more: str) -> None:
        loaded = load([*words, *more])
        open_record(tmp_path, loaded, resolve(loaded.config), {"all": {"data": "same"}}, {"all": {}}, {})

    start(fix)
    record = json.loads((tmp_path / "run.json").read_text())
    for stage in record["stages"]:
        stage["settings"] = {key: value for key, value in stage["settings"].items() if not key.endswith(".shared")}
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=rf"E-CKP-24 .*shared False -> True.* Fix: {fix}, or"):
        start()
    start(fix)


def test_an_older_export_is_read(tmp_path: Path) -> None:
    config = load(["position=kerple_log", "position.shared=false", KINDS, "model.vocab_size=64"]).config
    sections = config_json.Architecture.of(config, 64).sections()
    exported = {"model_type": "coca_train", "coca_train": without_shared(sections)}
    (tmp_path / "config.json").write_text(json.dumps(exported))
    assert config_json.architecture(tmp_path).sections() == sections
