"""Training that begins from a Hugging Face folder: imported once, and only if it is the run's model."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from coca_train import settings
from coca_train.hub import importing
from coca_train.runtime.errors import CheckpointError, Preempted, UserError
from tests.cases import slow_unless
from tests.faults import real
from tests.hub import planted
from tests.stages.support import (
    LLAMA,
    SIZES,
    STILL,
    Runs,
    begin,
    edit,
    imported,
    newest,
    record,
    saved,
    schedule,
    stage,
    tokenizer_of,
    weights,
)


def test_a_folder_is_as_good_as_its_import(runs: Runs, llama: Path) -> None:
    """The same weights to the bit, with the parity check beside them; only the first launch imports."""
    by_hand = begin(runs, imported(llama, runs.folder, "by_hand"), name="b")
    run = begin(runs, llama)
    assert weights(run, 1) == weights(by_hand, 1)
    assert json.loads((run / "start" / "parity.json").read_text())["passed"]
    before = (run / "start" / "run.json").stat().st_mtime_ns
    shutil.rmtree(run / "checkpoints")
    again = begin(runs, llama)
    assert weights(again, 1) == weights(by_hand, 1)
    assert (again / "start" / "run.json").stat().st_mtime_ns == before
    assert not real.leftovers(run)


def test_a_run_that_has_not_ended_is_told(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    two = schedule(stage("a", "max_steps: 2"), stage("b", "max_steps: 2"))
    source = runs.train("source", *LLAMA, *two, crash_at=3)
    begin(runs, source, name="early")
    assert f"WARNING: start.path={source} has not ended: it is at step 2 of 4" in capsys.readouterr().err
    runs.train("source", *LLAMA, *two)
    capsys.readouterr()
    begin(runs, source, name="late")
    assert "has not ended" not in capsys.readouterr().err


WIDTHS = [(t_from_k, t_width) for t_from_k in ("mean_of_halves", "first_half") for t_width in ("half", "full_mean")]


@pytest.mark.parametrize(("t_from_k", "t_width"), slow_unless(WIDTHS[1:3], WIDTHS))
def test_a_rope_folder_into_a_coca_run(runs: Runs, llama: Path, t_from_k: str, t_width: str) -> None:
    """As import makes it with the run's settings: T of the width that the run says."""
    words = ["position=coca_strict", f"position.t_width={t_width}", "position.rope_scaling.theta=500"]
    run = begin(runs, llama, *words, f"start.t_from_k={t_from_k}", "start.convert=rope_to_coca")
    options = {"position": "coca_strict", "t_from_k": t_from_k, "t_width": t_width}
    source = imported(llama, runs.folder, "by_hand", **options)
    assert weights(run, 1) == weights(source, 0)
    origin = record(run / "start")["imported"]
    assert (origin["asked"]["t_from_k"], origin["asked"]["convert"]) == (t_from_k, "rope_to_coca")
    assert origin["parity"]["conversion"]["equal"] == "at the first token"


def test_what_was_imported_from_something_else_is_refused(runs: Runs, spoilt: Path) -> None:
    """Other options, or other files under the same name; tokens of the probes do not matter."""
    words = ["position=coca", "position.rope_scaling.theta=500", "start.convert=rope_to_coca"]
    run = begin(runs, spoilt, *words)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"E-STA-04 .*/r/start: .*t_from_k mean_of_halves -> first_half.*Fix: "):
        begin(runs, spoilt, *words, "start.t_from_k=first_half")
    begin(runs, spoilt, *words, "start.parity_tokens=7")
    shutil.rmtree(run / "checkpoints")
    data = bytearray((spoilt / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (spoilt / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"E-STA-04 .*other files in .*spoilt; "):
        begin(runs, spoilt, *words)


def test_official_weights_are_folded_where_the_run_says_so(runs: Runs, spoilt: Path) -> None:
    """keys=t: the folder's key projections are T of full width."""
    words = ["position=coca", "position.rope_scaling.theta=500", "start.keys=t"]
    with pytest.raises(UserError, match=r"E-STA-02 .*t_width is full_mean.*coca_full_to_half$"):
        begin(runs, spoilt, *words, "position.t_width=half")
    run = begin(runs, spoilt, *words, "position.t_width=half", "start.convert=coca_full_to_half")
    assert record(run / "start")["imported"]["parity"]["conversion"]["equal"] == "everywhere"
    wide = begin(runs, spoilt, *words, name="wide")
    assert "convert" not in record(wide / "start")["imported"]["asked"]


MISMATCHES = {
    "width": (
        {"num_hidden_layers": 3, "intermediate_size": 40},
        "model.d_ff is 40, not 48; model.n_layers",
    ),
    "norm": ({"rms_norm_eps": 1e-5}, r"norm_eps is 1e-05, not 1e-06. Fix: model.norm_eps=1e-05$"),
    "heads": ({"num_key_value_heads": 1}, "model.n_kv_heads is 1, not 2"),
    "rows": ({"vocab_size": 65}, "Fix: model.vocab_size=65"),
    "tied": ({"tie_word_embeddings": True}, "Fix: model.tie_embeddings=true"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_another_model_is_refused_before_weights_are_read(
    runs: Runs, tmp_path: Path, case: str, corpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.hub import models

    changes, words = MISMATCHES[case]
    folder = models.write(tmp_path / case, "llama", **(SIZES | {"rms_norm_eps": 1e-6} | changes))
    shutil.copy(tokenizer_of(corpus), folder / "tokenizer.model")
    monkeypatch.setattr("coca_train.hub.safetensors_folder.Folder.read", never)
    with pytest.raises(UserError, match=f"E-STA-02 start.path=.*{case}: .*{words}"):
        begin(runs, folder)
    assert not (runs.folder / "r").exists()


def never(*_: Any) -> None:
    raise AssertionError("this must not be reached")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["position=alibi", "~position.rope_scaling"],
            r"E-STA-03 .*is rope, the run's is alibi; .*Fix: position=rope$",
        ),
        (["model.activation=gelu"], "E-STA-02 .*model.activation is swiglu, not gelu"),
        (["model.bias=[qkv]"], r"model.bias is \[\], not \[.qkv.\]"),
        (["position.rotary_pct=0.5"], "position.rotary_pct is 1.0, not 0.5"),
    ],
    ids=["alibi", "activation", "bias", "rotary"],
)
def test_another_model_of_the_run_is_refused(runs: Runs, llama: Path, words: list[str], message: str) -> None:
    rest = [word for word in LLAMA if "theta" not in word or words[0] != "position=alibi"]
    with pytest.raises(UserError, match=message):
        runs.train("r", *rest, *STILL, f"start.path={llama}", *[word for word in words if word[0] != "~"])
    assert not (runs.folder / "r").exists()


def test_other_frequencies_are_announced(runs: Runs, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are the run's to choose: interpolation begins so."""
    words = ["position/rope_scaling=linear", "position.rope_scaling.factor=4", "position.rope_scaling.theta=500"]
    run = begin(runs, llama, *words, "attention_pattern=sliding_window", "attention_pattern.window=12")
    err = capsys.readouterr().err
    line = next(line for line in err.splitlines() if line.startswith("CHANGED since the weights"))
    assert "position.rope_scaling.name plain -> linear" in line
    assert "position.rope_scaling.factor null -> 4.0" in line
    assert "attention_pattern.name causal -> sliding_window" in line
    assert "theta" not in line
    assert weights(run, 1) == weights(run / "start", 0)


def test_pickles_unknown_keys_and_no_transformers(runs: Runs, spoilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As import refuses them, before anything is written."""
    edit(spoilt, surprise=3)
    with pytest.raises(UserError, match=r"E-IOP-04 .*surprise=3.*start\.ignore=\[surprise\]"):
        begin(runs, spoilt)
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "transformers", None)
        with pytest.raises(UserError, match=r"E-IOP-17 .*pip install 'coca-train\[interop\]'"):
            begin(runs, spoilt, "start.ignore=[surprise]")
    (spoilt / "model.safetensors").rename(spoilt / "pytorch_model.bin")
    with pytest.raises(UserError, match="E-IOP-02"):
        begin(runs, spoilt, "start.ignore=[surprise]")
    assert not (runs.folder / "r").exists()
    (spoilt / "pytorch_model.bin").rename(spoilt / "model.safetensors")
    begin(runs, spoilt, "start.ignore=[surprise]")


def test_code_of_the_folder_is_never_run(runs: Runs, spoilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type that is known is read as that, whatever code it names; another is refused."""
    canary = runs.folder / "canary"
    monkeypatch.setattr("builtins.input", lambda *words: canary.touch())
    planted.everything(spoilt, canary)
    planted.name_code(spoilt)
    planted.name_tokenizer(spoilt, "T")
    run = begin(runs, spoilt)
    assert weights(run, 1) == weights(run / "start", 0)
    planted.name_code(spoilt, "evil")
    with pytest.raises(UserError, match=r"E-IOP-04 .*model_type='evil'"):
        begin(runs, spoilt, name="other")
    assert not canary.exists()


def test_a_folder_that_is_neither(runs: Runs) -> None:
    (runs.folder / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"E-CKP-26 .*/empty: .*hf download"):
        begin(runs, runs.folder / "empty")
    with pytest.raises(UserError, match=r"E-CFG-29 .*start\.path"):
        runs.train("r", "start.path='~/llama'")


def test_a_failed_parity_check_leaves_nothing_to_begin_from(
    runs: Runs, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coca_train.hub.parity.BOUND", 1e-12)
    with pytest.raises(CheckpointError, match="E-IOP-13"):
        begin(runs, llama)
    assert not list((runs.folder / "r").glob("*start*"))
    assert not real.leftovers(runs.folder / "r")


def test_asked_to_stop_while_importing(runs: Runs, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 75, nothing is kept, the same command imports again."""
    checkpoint = importing._write_checkpoint

    def stop(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        checkpoint(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(importing, "_write_checkpoint", stop)
        with pytest.raises(Preempted, match=r"stopped while importing start\.path"):
            begin(runs, llama)
    assert not list((runs.folder / "r").glob("*start*"))
    assert weights(begin(runs, llama), 1)


def test_a_command_line_with_a_start_alone(runs: Runs, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape, scheme, theta, window, vocabulary and tokenizer are the folder's; what the words set is kept. A quickstart
    in the same folder is another run."""
    from coca_train.commands._training import load

    monkeypatch.chdir(runs.folder)
    (runs.folder / "runs" / "quickstart" / "checkpoints" / "step-00000600").mkdir(parents=True)
    config = load([f"start.path={llama}", "stages=coca_three"]).config
    sizes = (config.model.n_layers, config.model.d_model, config.model.vocab_size, config.train.seq_len)
    assert sizes == (2, 32, 64, 24) and config.position.rope_scaling.theta == 500
    assert config.data.tokenizer == str(llama / "tokenizer.model") and config.data.dir.startswith("data/embedded-")
    words = ["position=coca", "position/rope_scaling=yarn", "train.seq_len=48", "attention_pattern=sliding_window"]
    config = load([f"start.path={llama}", *words]).config
    yarn = config.position.rope_scaling
    assert (yarn.name, yarn.theta, yarn.original_seq_len) == ("yarn", 500, 24)
    assert (config.position.scheme, config.train.seq_len, config.attention_pattern.name) == (
        "coca",
        48,
        "sliding_window",
    )
    assert load([f"start.path={llama}", "model=neox_tiny"]).config.model.d_model != 32
    typed = load([f"start.path={llama}", "model=from_start", "stages=coca_three"]).config
    assert typed == load([f"start.path={llama}", "stages=coca_three"]).config  # as docs/stages.md types it
    with pytest.raises(UserError) as caught:
        load(["model=from_start"])
    assert str(caught.value).startswith("E-CFG-71") and str(caught.value).count("E-CFG") == 1
    recipe = load(["+experiment=coca_llama_tiny", f"start.path={llama}", "model=from_start"]).config
    assert (recipe.position.scheme, recipe.position.rope_scaling.theta, recipe.train.seq_len) == ("coca", 500, 128)


def test_a_native_folder_brings_the_convention_that_its_export_can_say(
    runs: Runs, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is typed and what a run has begun with count more; where the weights are not native, files do."""
    from coca_train.commands._training import load
    from coca_train.training.run import train

    def convention(*words: str) -> str:
        return load([*words], launch=False).config.position.rope_scaling.convention

    yarn = ["position/rope_scaling=yarn", f"start.path={llama}"]
    paper = "position.rope_scaling.convention=paper"
    assert convention(*yarn) == "code" and convention(*yarn, paper) == "paper"
    assert convention(*yarn, "position=coca") == convention(*yarn, "model=llama_tiny") == "paper"
    assert convention("position/rope_scaling=ntk_by_parts", yarn[1]) == "paper"

    small = [word for word in real.TINY if not word.startswith(("model", "train.seq_len", "position"))]
    rest = ["engine=local", "engine.dtype=fp32", "eval.max_tokens=48", *STILL[2:], *runs.corpus]
    words = [*small, *rest, *yarn, f"run.root={runs.folder}", "train.max_steps=1"]
    train(load([*words, "run.name=theirs"]))
    assert "LlamaForCausalLM (llama)" in announced(capsys)
    assert convention(*words, "run.name=theirs") == "code"
    train(load([*words, paper, "run.name=ours"]))
    line = announced(capsys)
    assert "position.rope_scaling.convention=code" in line
    assert convention(*words, "run.name=ours") == "paper"  # it has begun so


def announced(capsys: pytest.CaptureFixture[str]) -> str:
    """What the start of a training says of its export."""
    printed = capsys.readouterr()
    (line,) = [line for line in (printed.out + printed.err).splitlines() if line.startswith("export ")]
    return line


def test_from_start_trains_and_goes_on_without_the_folder(
    runs: Runs, spoilt: Path, corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a folder, and of the run that came of it."""
    from coca_train.commands._training import load
    from coca_train.training.run import train

    small = [word for word in real.TINY if not word.startswith(("model", "train.seq_len"))]
    rest = ["engine=local", "engine.dtype=fp32", "eval.max_tokens=48", *STILL[2:], *corpus, f"run.root={runs.folder}"]
    words = [*small, *rest, f"start.path={spoilt}", "run.name=a", "checkpoint.save_every_steps=1"]
    train(load([*words, "train.max_steps=1"]))
    assert weights(runs.folder / "a", 1) == weights(runs.folder / "a" / "start", 0)
    shutil.rmtree(spoilt)
    train(load([*words, "train.max_steps=2"]))
    again = [*small, *rest, f"start.path={runs.folder / 'a'}", "run.name=b", "train.max_steps=1"]
    train(load(again))
    assert weights(runs.folder / "b", 1) == weights(runs.folder / "a", 2)
    assert "CHANGED since the weights" not in capsys.readouterr().err


def test_a_run_is_named_after_the_folder_it_starts_from(runs: Runs, llama: Path) -> None:
    """An experiment's own name stays, and so does a typed one. Folders of one name make two runs."""
    from coca_train.commands._training import load, remembered

    def name(*words: str) -> str:
        return load([*words], launch=False).config.run.name

    twin = shutil.copytree(llama, runs.folder / "twin" / llama.name)
    names = [name(f"start.path={folder}") for folder in (llama, twin)]
    assert len(set(names)) == 2 and all(re.fullmatch(rf"{llama.name}-[0-9a-f]{{8}}", each) for each in names)
    assert name(f"start.path={llama}/") == name("model=from_start", f"start.path={llama}") == names[0]
    assert name(f"start.path={llama}", "position=coca", "model=neox_tiny") == names[0]
    assert remembered([f"start.path={twin}"], ()) == [f"start.path={twin}"]
    assert settings.load(["start.path=/models/Llama-2-7b-hf"], launch=False).config.run.name == "Llama-2-7b-hf-6a9c3a35"
    odd = twin.rename(runs.folder / "Модель (v 2)")
    assert re.fullmatch(r"v-2-[0-9a-f]{8}", name(f"start.path='{odd}'"))
    assert name(f"start.path='{odd}'", "run.name=mine") == "mine"
    assert name("+experiment=coca_llama_tiny", f"start.path='{odd}'") == "coca_llama_tiny"
    assert name("start.path=null") == name("start.convert=[]") == "quickstart"


def test_a_start_after_the_quickstart(runs: Runs, llama: Path, spoilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, without a word about names: another run, which goes on when it is typed again; from another
    folder, or from the quickstart itself, yet another."""
    from coca_train.commands._training import load
    from coca_train.training.run import train

    monkeypatch.chdir(runs.folder)
    rest = [*real.TINY, "engine=local", "engine.dtype=fp32", "eval.max_tokens=48", *STILL[2:], *runs.corpus]
    small = [word for word in rest if not word.startswith(("model", "train.seq_len"))]
    train(load([*rest, "train.max_steps=1"]))

    def ran(path: object, steps: int) -> set[str]:
        train(load([*small, f"start.path={path}", f"train.max_steps={steps}", "checkpoint.save_every_steps=1"]))
        return {folder.name for folder in (runs.folder / "runs").iterdir()} - {"quickstart"}

    (first,) = ran(llama, 1)
    began = record(runs.folder / "runs" / first)
    assert ran(llama, 2) == {first}
    assert record(runs.folder / "runs" / first)["run_id"] == began["run_id"]
    assert saved(runs.folder / "runs" / first)[-1] == 2
    assert len(ran(spoilt, 1)) == 2
    assert len(ran("runs/quickstart", 1)) == 3
    assert newest(runs.folder / "runs" / "quickstart") == 1


def test_another_scheme_after_the_quickstart(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused with the word that makes it another run, which works as printed."""
    from coca_train.commands._training import load
    from coca_train.training.run import train

    monkeypatch.chdir(runs.folder)
    words = [*real.TINY, "engine=local", "engine.dtype=fp32", "eval.max_tokens=48", *runs.corpus]
    words += ["train.max_steps=1", "optim.warmup_steps=0"]
    train(load(words))
    for number in (2, 3):
        with pytest.raises(CheckpointError, match="E-CKP-24") as refused:
            train(load([*words, "position=rope"]))
        fix = str(refused.value).rpartition(" ")[2]
        assert fix == f"run.name=quickstart-{number}"
        train(load([*words, "position=rope", fix]))
        assert newest(runs.folder / "runs" / f"quickstart-{number}") == 1
