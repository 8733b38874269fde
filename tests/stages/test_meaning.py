"""What gives weights their meaning is the run's that begins with them, or the run says what it makes of them."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coca_train.checkpoint.opening import load_run
from coca_train.hub import conversions
from coca_train.hub.weights import Source
from coca_train.runtime.errors import CheckpointError, UserError
from tests.faults import real
from tests.fixes import first, fix_of, option
from tests.stages.support import LLAMA, STILL, Runs, leave_out, record, weights

THETA = "position.rope_scaling.theta"
ROPE = [*LLAMA]
COCA = [word for word in LLAMA if THETA not in word] + ["position=coca", f"{THETA}=500", "position.t_width=half"]
OTHER = [word for word in LLAMA if THETA not in word]
LAYERED = "layers=nope_every_fourth model.n_layers=4"
FAR = "model.n_layers=4 +layers.types.far={position:{rope_scaling:{theta:9000.0}}} layers.pattern=[default,far]"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Runs, dict[str, Path]]]:
    """Runs of one step to begin from, by name."""
    folder = tmp_path_factory.mktemp("meaning")
    with pytest.MonkeyPatch.context() as patch:
        leave_out(patch.setattr)
        runs = Runs(folder / "runs", real.prepare(folder), patch)
        folders = {
            "rope": runs.train("rope", *ROPE, *STILL),
            "coca": runs.train("coca", *COCA, *STILL),
            "full": runs.train("full", *COCA, "position.t_width=full_mean", *STILL),
            "four": runs.train("four", *ROPE, "model.n_layers=4", *STILL),
            "scaled": runs.train("scaled", *ROPE, "model.logit_scale.name=log", *STILL),
        }
        yield runs, folders


# The weights, the run that begins with them, what else it says, and words of the refusal.
REFUSED = {
    "theta": ("rope", OTHER, "theta=500000", r"E-STA-02 .*500.0, not 500000.0.*or start.convert=new_theta$"),
    "code_llama": ("rope", OTHER, "position/rope_scaling=code_llama", r"theta is 500.0, not 1000000.0"),
    "theta, scaled": ("rope", OTHER, "position/rope_scaling=yarn theta=1e4", r"theta is 500.0, not 10000.0"),
    "alibi": ("rope", OTHER, "position=alibi", r"E-STA-03 .*rope, the run's is alibi; no conv.*Fix: position=rope$"),
    "nope": ("rope", OTHER, "position=nope", r"E-STA-03 .*nope; .*position=rope, or start.convert=rope_to_nope$"),
    "coca": ("rope", COCA, "", r"E-STA-03 .*coca; .*Fix: position=rope, or start.convert=rope_to_coca$"),
    "xpos": ("rope", OTHER, "position=xpos theta=500", r"E-STA-03 .*xpos; no conversion"),
    "rope from coca": ("coca", ROPE, "", r"E-STA-03 .*is coca, the run's is rope; no conversion .*Fix: position=coca$"),
    "strict": ("coca", COCA, "position=coca_strict", r"E-STA-02 .*position.variant is slack, not strict"),
    "width": ("coca", COCA, "position.t_width=full_mean", r"half, not full_mean.*convert=coca_half_to_full$"),
    "half": ("full", COCA, "", r"t_width is full_mean, not half.*start.convert=coca_full_to_half$"),
    "rotary_pct": ("rope", ROPE, "position.rotary_pct=0.5", r"position.rotary_pct is 1.0, not 0.5"),
    "norm_eps": ("rope", ROPE, "model.norm_eps=1e-5", r"config.yaml .*model.norm_eps is 1e-06, not 1e-05"),
    "activation": ("rope", ROPE, "model.activation=gelu", r"model.activation is swiglu, not gelu"),
    "qk_norm": ("rope", ROPE, "model.qk_norm=head", r"model.qk_norm is none, not head"),
    "residual": ("rope", ROPE, "model.residual=parallel", r"model.residual is sequential, not parallel"),
    "heads": ("rope", ROPE, "model.n_heads=4", r"model.head_dim is 16, not 8; model.n_heads is 2, not 4"),
    "layers": ("four", ROPE, LAYERED, r"E-STA-02 .*layers.(types|pattern) is .*or start.convert=rope_to_nope$"),
    "theta of a kind": ("four", ROPE, FAR, r"layers.pattern is \[\], not .*new_theta$"),
    "rows": ("rope", ROPE, "model.vocab_size=128", r"model.vocab_size is 64, not 128"),
    "bias": ("rope", ROPE, "model.bias=[qkv]", r"model.bias is \[\], not \[.qkv.\]"),
    "no such conversion": ("rope", COCA, "start.convert=rope_to_koca", r"E-STA-06 .*did you mean rope_to_coca\?"),
    "the wrong one": ("rope", OTHER, "position=alibi start.convert=rope_to_nope", r"E-STA-03 .*alibi"),
    "one of two": ("rope", COCA, "start.convert=new_theta", r"E-STA-03 .*start.convert=new_theta,rope_to_coca$"),
}
ANNOUNCED = {
    "scaling": ("rope", ROPE, "position/rope_scaling=linear position.rope_scaling.factor=4",
                ["rope_scaling.name plain -> linear", "factor null -> 4.0"]),
    "scaling of CoCA": ("coca", COCA, "position/rope_scaling=yarn", ["rope_scaling.name plain -> yarn"]),
    "attention_pattern": ("rope", ROPE, "attention_pattern=sliding_window attention_pattern.window=12",
                          ["name causal -> sliding_window"]),
    "logit scale": ("rope", ROPE, "model.logit_scale.name=log", ["logit_scale.name none -> log"]),
    "window under it": ("scaled", ROPE, "model.logit_scale.name=log train.seq_len=48", ["logit_scale.length 24 -> 48"]),
}  # fmt: skip
CONVERTED = {
    "rope_to_coca": ("rope", COCA, "", "at the first token"),
    "rope_to_nope": ("rope", OTHER, "position=nope", "at the first token"),
    "rope_to_nope in some layers": ("four", ROPE, LAYERED, "at the first token"),
    "rope_to_pope": ("rope", OTHER, "position=pope theta=500", "at the first token"),
    "new_theta": ("rope", OTHER, "theta=500000", "at the first token"),
    "coca_half_to_full": ("coca", COCA, "position.t_width=full_mean", "everywhere"),
    "coca_full_to_half": ("full", COCA, "", "everywhere"),
    "rope_to_coca,new_theta": ("rope", COCA, "theta=9000", "at the first token"),
}


def said(base: list[str], words: str) -> list[str]:
    """The words of a command line."""
    return [*base, *(word.replace("theta=", f"{THETA}=", word.startswith("theta=")) for word in words.split()), *STILL]


def accepted(runs: Runs, words: list[str], start: str, error: UserError) -> None:
    """Type what each message says to do, a conversion where it offers one, until the run begins."""
    refused = set()
    while str(error) not in refused:
        refused.add(str(error))
        offered = [first(each) for each in fix_of(error).split(", or ")]
        fix = next((each for each in offered if each[0].startswith("start.convert=")), offered[0])
        fix = [word if "=" in word else f"start.convert={word}" for word in fix]
        words = [*(word for word in words if option(word) not in map(option, fix)), *fix]
        try:
            runs.train("accepted", *words, start)
        except UserError as next_error:
            error = next_error
        else:
            shutil.rmtree(runs.folder / "accepted")
            return
    raise AssertionError("\n".join(["typed, and said again:", *refused]))


@pytest.mark.parametrize("case", REFUSED)
def test_another_meaning_is_refused(sources: tuple[Runs, dict[str, Path]], case: str) -> None:
    runs, folders = sources
    source, base, words, message = REFUSED[case]
    with pytest.raises(UserError, match=message) as raised:
        runs.train("r", *said(base, words), f"start.path={folders[source]}")
    assert "\n" not in str(raised.value)
    assert not (runs.folder / "r").exists()
    accepted(runs, said(base, words), f"start.path={folders[source]}", raised.value)


@pytest.mark.parametrize("case", ANNOUNCED)
def test_what_a_run_may_choose_is_announced(
    sources: tuple[Runs, dict[str, Path]], case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, folders = sources
    source, base, words, shown = ANNOUNCED[case]
    run = runs.train(case.replace(" ", "_"), *said(base, words), f"start.path={folders[source]}")
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("CHANGED since the weights"))
    assert all(part in line for part in shown) and "theta" not in line
    assert record(run)["start"]["changed"][0] in line
    assert weights(run, 1) == weights(folders[source], 1)


def test_nothing_is_said_of_the_same_model(
    sources: tuple[Runs, dict[str, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    runs, folders = sources
    run = runs.train("same", *ROPE, *STILL, f"start.path={folders['rope']}")
    assert "CHANGED" not in capsys.readouterr().err
    origin = record(run)["start"]["origin"]
    assert (origin["run"], origin["step"], record(run)["start"]["converted"]) == ("rope", 1, [])
    assert not (run / "start").exists()


@pytest.mark.parametrize("case", CONVERTED)
def test_a_declared_conversion(
    sources: tuple[Runs, dict[str, Path]], case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Announced, proved, kept in run.json; the logits are those of before where they must be, and no others are."""
    runs, folders = sources
    source, base, words, where = CONVERTED[case]
    names = case.partition(" ")[0]
    start = [f"start.path={folders[source]}", f"start.convert={names}"]
    run = runs.train(re.sub("[ ,]", "-", case), *said(base, words), *start)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("CHANGED since the weights")]
    assert len(lines) == 1 and all(name in lines[0] for name in names.split(","))
    assert record(run)["start"]["converted"] == names.split(",")
    proof = json.loads((run / "start" / "parity.json").read_text())["conversion"]
    assert proof["passed"] and proof["equal"] == where and proof["probes"]
    before, after = load_run(folders[source], "cpu").model, load_run(run, "cpu").model
    tokens_BT = torch.arange(20)[None] % 60
    with torch.no_grad():
        theirs_BTV, ours_BTV = before(tokens_BT), after(tokens_BT)
    torch.testing.assert_close(ours_BTV[:, :1], theirs_BTV[:, :1], rtol=1e-4, atol=1e-5)
    assert torch.allclose(ours_BTV, theirs_BTV, rtol=1e-4, atol=1e-5) == (where == "everywhere")


def test_a_conversion_that_does_not_hold_begins_nothing(
    sources: tuple[Runs, dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, folders = sources
    cat = torch.cat
    monkeypatch.setattr(conversions.torch, "cat", lambda parts, dim: cat([1.5 * part for part in parts], dim))
    words = [*COCA, "position.t_width=full_mean", *STILL, "start.convert=coca_half_to_full"]
    with pytest.raises(CheckpointError, match=r"E-STA-05 .*coca_half_to_full: .*everywhere"):
        runs.train("wrong", *words, f"start.path={folders['coca']}")
    assert not list((runs.folder / "wrong").glob("*start*"))


def test_another_weight_than_the_conversion_names_is_seen_at_the_first_token(
    sources: tuple[Runs, dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without positions all logits but the first token's are others in any case."""
    runs, folders = sources
    rope_to_nope = conversions.CONVERSIONS["rope_to_nope"]

    def spoilt(source: Source, *rest: Any) -> Source:
        read = lambda name: source.read(name) * (1.5 if name == "blocks.1.attention.v.weight" else 1)  # noqa: E731
        return replace(rope_to_nope.convert(source, *rest), read=read)

    monkeypatch.setitem(conversions.CONVERSIONS, "rope_to_nope", rope_to_nope._replace(convert=spoilt))
    words = said(OTHER, "position=nope start.convert=rope_to_nope")
    with pytest.raises(CheckpointError, match=r"E-STA-05 .*at the first token"):
        runs.train("spoilt", *words, f"start.path={folders['rope']}")
    assert not list((runs.folder / "spoilt").glob("*start*"))


def test_what_is_so_already_is_said(sources: tuple[Runs, dict[str, Path]], capsys: pytest.CaptureFixture[str]) -> None:
    """Of a recipe that may begin with a folder or with what was imported from it."""
    runs, folders = sources
    runs.train("so", *COCA, *STILL, f"start.path={folders['coca']}", "start.convert=rope_to_coca")
    assert "start.convert=rope_to_coca " in capsys.readouterr().err


def test_each_conversion_is_listed() -> None:
    assert set(conversions.summaries()) == {name for case in CONVERTED for name in case.partition(" ")[0].split(",")}
    assert all(conversions.summaries().values())
