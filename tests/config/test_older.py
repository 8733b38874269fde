"""Runs from before a scheme could share its numbers among the layers: each layer had its own, and has."""

import json
from pathlib import Path

import pytest
import yaml

from coca_train.checkpoint.record import open_record
from coca_train.config.older import ADDED_TO_SCHEMES, as_ever, complete
from coca_train.evaluation.variants import Variant, described
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


def test_what_was_measured_keeps_its_key() -> None:
    """A cell's content is as it was for each layer's own numbers, and another for shared ones."""
    keys = {}
    for shared in ("true", "false"):
        config = load(["position=kerple_log", f"position.shared={shared}"]).config
        keys[shared] = described(Variant(config.position, config.visibility))["position"]
    assert keys == {"true": {"scheme": "kerple_log", "shared": True}, "false": {"scheme": "kerple_log"}}
    assert as_ever({"scheme": "rope", "shared": False}) == {"scheme": "rope", "shared": False}
    assert set(ADDED_TO_SCHEMES) == {"kerple_log", "kerple_power", "transformer_xl"}
