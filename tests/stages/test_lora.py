"""A stage that trains matrices through adapters: what it changes, how it resumes, and what comes after it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from coca_train import positions
from coca_train.attention import patterns
from coca_train.checkpoint.opening import load_run
from coca_train.config.schema import LoraConfig
from coca_train.engine.base import Engine
from coca_train.hub import exporting
from coca_train.hub.options import ExportConfig
from coca_train.hub.weights import open_source
from coca_train.models.init import init_parameter
from coca_train.models.lora import is_adapter, named_parameters
from coca_train.models.trainable import adapt
from coca_train.models.transformer import Transformer, build_model, vocab_size
from coca_train.runtime.errors import UserError
from coca_train.testing.parts import MODEL, VOCAB
from coca_train.training import stage as stage_run
from tests.cases import slow_unless
from tests.stages.support import Runs, logged, manifest, remove, schedule, stage, state, weights

QKV = "blocks.*.attention.[qkv].weight"
LORA = f"trainable: ['{QKV}'], lora: {{rank: 4, alpha: 8}}"
STILL = "optim: {lr: 1.0e-30, min_lr: 0, warmup_init_lr: 0, weight_decay: 0}"  # steps that change nothing
FULL, ADAPTED, LAST = stage("full", "max_steps: 2"), stage("adapted", f"max_steps: 3, {LORA}"), stage("last")
STILL_FULL = stage("still", f"max_steps: 1, {STILL}")
STILL_ADAPTED = stage("still", f"max_steps: 1, {STILL}, trainable: ['{QKV}'], lora: {{rank: 2, alpha: 2}}")
FAST = ["optim.lr=0.01", "checkpoint.save_every_steps=1", "checkpoint.keep=9", "position=coca"]


def plain(run_dir: Path, step: int) -> dict[str, bytes]:
    return {name: data for name, data in weights(run_dir, step).items() if not is_adapter(name)}


def adapters(run_dir: Path, step: int) -> dict[str, bytes]:
    return {name: data for name, data in weights(run_dir, step).items() if is_adapter(name)}


def tensor(data: bytes, *shape: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.float32).view(*shape)


def merged(run_dir: Path, step: int, rank: int, scale: float) -> dict[str, bytes]:
    """W + scale B A of the tensors on the disk, written out here."""
    held = weights(run_dir, step)
    for name in [name for name in held if name.endswith(".lora_A.weight")]:
        layer = name.removesuffix(".lora_A.weight")
        a, b = tensor(held.pop(name), rank, -1), tensor(held.pop(f"{layer}.lora_B.weight"), -1, rank)
        weight = tensor(held[f"{layer}.weight"], b.shape[0], a.shape[1])
        held[f"{layer}.weight"] = (weight + (b @ a) * scale).numpy().tobytes()
    return held


def loaded(run_dir: Path) -> dict[str, bytes]:
    run = load_run(run_dir, "cpu")
    return {name: p.detach().float().numpy().tobytes() for name, p in run.model.named_parameters()}


@pytest.mark.parametrize("dtype", slow_unless(["bf16"], ["fp32", "bf16"]))
def test_adapters_alone_are_trained(runs: Runs, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """No weight changes by a bit, none has a gradient or moments; A and B of every matrix have."""
    seen: list[tuple[set[int], set[int]]] = []
    train_step = stage_run.run_stage

    def watch(config: Any, engine: Any, *rest: Any, **options: Any) -> None:
        step = engine._optimizer.step

        def looking(*_: Any) -> None:
            shapes = {name: tuple(p.shape) for name, p in engine._masters.items() if p.grad is not None}
            seen.append((set(shapes), {n for n, p in engine._masters.items() if p in engine._optimizer.state}))
            assert {n for n, p in engine.model.named_parameters() if p.grad is not None} <= {
                n for n, p in engine.model.named_parameters() if p.requires_grad
            }
            step()

        engine._optimizer.step = looking
        train_step(config, engine, *rest, **options)

    monkeypatch.setattr(stage_run, "run_stage", watch)
    run = runs.train("r", *schedule(FULL, ADAPTED), *FAST, dtype=dtype)
    before, after = weights(run, 2), plain(run, 5)
    assert after == before
    layers = [f"blocks.{block}.attention.{part}" for block in (0, 1) for part in "qkv"]
    names = {f"{layer}.lora_{half}.weight" for layer in layers for half in "AB"}
    assert set(adapters(run, 5)) == names
    assert seen[2:] == [(names, names)] * 3
    assert {key for key in state(run, 5) if key[:6] != "model/"} == {
        f"{moment}/{name}" for name in names for moment in ("exp_avg", "exp_avg_sq")
    }
    assert manifest(run, 5)["trainable"] == sorted(names)
    assert manifest(run, 5)["lora"] == {"rank": 4, "alpha": 8.0} and "lora" not in manifest(run, 2)
    assert len({adapters(run, step)[name] for step in (3, 4, 5) for name in names}) == 3 * len(names)


def test_a_pattern_means_every_linear_layer_it_matches() -> None:
    """FoX's gates among them, whose rank ends at the number of heads; the pattern of the messages leaves them out."""

    def adapted(pattern: str, rank: int) -> set[str]:
        typed = positions.settings({"scheme": "fox"}), patterns.settings({"name": "causal"})
        with torch.device("meta"):
            model = Transformer(MODEL, *typed, vocab_size=VOCAB, max_seq_len=32)
        adapt(model, [pattern], LoraConfig(rank=rank, alpha=1.0))
        names = {name for name, _ in named_parameters(model) if is_adapter(name)}
        return {name.split(".", 3)[3].split(".lora_")[0] for name in names}

    assert adapted("blocks.*.attention.[qkv].*", 8) == {"q", "k", "v"}
    assert adapted("blocks.*.attention.*", 4) == {"q", "k", "v", "out", "position.gate"}
    with pytest.raises(UserError, match=r"E-STG-17 .*position\.gate\.weight .*rank=4"):
        adapted("blocks.*.attention.*", 8)


CRASHES = [(3, "bf16"), (4, "fp32"), (5, "bf16"), (6, "fp32")]


@pytest.mark.parametrize(("crash_at", "dtype"), slow_unless([CRASHES[0], CRASHES[3]], CRASHES))
def test_killed_anywhere_it_ends_the_same(runs: Runs, crash_at: int, dtype: str) -> None:
    words = [*schedule(FULL, ADAPTED, LAST), *FAST]
    whole = runs.train("whole", *words, dtype=dtype)
    runs.train("r", *words, dtype=dtype, crash_at=crash_at)
    run = runs.train("r", *words, dtype=dtype)
    for step in range(1, 9):
        assert state(run, step) == state(whole, step)
    assert logged(run, "loss") == logged(whole, "loss")


def test_a_begins_by_name_and_seed_and_b_with_zeros(runs: Runs) -> None:
    """In a run anew, after another stage, after another adapted stage; another seed gives another A."""
    words = [stage("a", f"max_steps: 1, {STILL}, {LORA}"), stage("b", f"max_steps: 1, {STILL}, {LORA}")]
    run = runs.train("r", *schedule(FULL, *words), *FAST)
    new = runs.train("new", *schedule(words[0]), *FAST)
    other = runs.train("other", *schedule(words[0]), *FAST, "run.seed=5")
    begun = load_run(new, "cpu").loaded.config
    for name, data in adapters(run, 4).items():
        values = tensor(data, *((4, -1) if "lora_A" in name else (-1, 4)))
        if "lora_B" in name:
            assert float(values.abs().max()) < 1e-29
            continue
        init_parameter(name, expected := torch.empty(values.shape), begun.model, begun.position, begun.run.seed)
        assert torch.equal(values, expected)
        assert data == adapters(new, 1)[name] == adapters(run, 3)[name] != adapters(other, 1)[name]
        bound = 32**-0.5
        assert 0.9 * bound < float(values.abs().max()) <= bound
        assert float(values.std()) == pytest.approx(bound / 3**0.5, rel=0.2)
    assert len({data for name, data in adapters(new, 1).items() if "lora_A" in name}) == 6  # every A is another


FOLLOWING = {"full": STILL_FULL, "adapted": STILL_ADAPTED}
EVERY = [(name, dtype) for name in FOLLOWING for dtype in ("fp32", "bf16")]


@pytest.mark.parametrize(("name", "dtype"), slow_unless([("full", "bf16"), ("adapted", "fp32")], EVERY))
def test_what_follows_begins_with_merged_weights(runs: Runs, name: str, dtype: str) -> None:
    """The next stage, and a run that starts from this one; exactly, also where the engine holds rounded weights."""
    after = FOLLOWING[name]
    run = runs.train("r", *schedule(FULL, ADAPTED, after), *FAST, dtype=dtype)
    expected = merged(run, 5, 4, 2.0)
    assert {name for name in expected if expected[name] != weights(run, 5)[name]} == {
        f"blocks.{block}.attention.{part}.weight" for block in (0, 1) for part in "qkv"
    }
    assert plain(run, 6) == expected
    ended = runs.train("ended", *schedule(FULL, ADAPTED), *FAST, dtype=dtype)
    started = runs.train("started", *schedule(after), *FAST, f"start.path={ended}", dtype=dtype)
    assert plain(started, 1) == expected


def test_a_resumed_stage_after_adapters_keeps_its_frozen_weights(runs: Runs) -> None:
    """bf16: what is not trained comes from the merged checkpoint first, from the stage's own when it is resumed."""
    after = stage("mlp", "max_steps: 3, trainable: ['blocks.*.mlp.*']")
    words = [*schedule(FULL, ADAPTED, after), *FAST]
    run = runs.train("r", *words, dtype="bf16", crash_at=7)
    runs.train("r", *words, dtype="bf16")
    ended, expected = weights(run, 8), merged(run, 5, 4, 2.0)
    assert {name for name in ended if ended[name] != expected[name]} == {name for name in ended if ".mlp." in name}


def test_merged_as_peft_merges(runs: Runs) -> None:
    """load_run gives to the bit what peft's merge_and_unload makes of the same tensors."""
    from peft import LoraConfig, get_peft_model

    run = runs.train("r", *schedule(FULL, ADAPTED), *FAST)
    opened, held = load_run(run, "cpu"), weights(run, 5)
    config = opened.loaded.config
    model = build_model(config, vocab_size(config.model, opened.tokenizer.vocab_size, ""))
    for name, parameter in model.named_parameters():
        parameter.data = tensor(held[name], *parameter.shape)
    layers = [name.removesuffix(".lora_A.weight") for name in held if name.endswith(".lora_A.weight")]
    theirs: Any = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=layers))  # pyright: ignore[reportArgumentType]
    for layer in layers:
        for half in "AB":
            parameter = theirs.get_parameter(f"base_model.model.{layer}.lora_{half}.default.weight")
            parameter.data = tensor(held[f"{layer}.lora_{half}.weight"], *parameter.shape)
    tokens_BT = torch.arange(20)[None]
    with torch.no_grad():
        apart, ours = theirs.eval()(tokens_BT), opened.model(tokens_BT)
    assert torch.allclose(apart, ours, atol=1e-5)
    whole = theirs.merge_and_unload()
    assert all(torch.equal(p, dict(whole.named_parameters())[name]) for name, p in opened.model.named_parameters())
    assert loaded(run) == merged(run, 5, 4, 2.0)


def test_the_engine_evaluates_with_adapters(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What validation and the report are given computes what load_run computes, and not what the frozen weights do."""
    tokens_BT, logits = torch.arange(20)[None], []

    def report(config: Any, run_dir: Path, runner: Engine, *rest: Any) -> None:
        with runner.eval_module() as module, torch.no_grad():
            logits.append(module(tokens_BT))

    monkeypatch.setattr(stage_run, "final_report", report)
    run = runs.train("r", *schedule(FULL, ADAPTED), *FAST)
    with torch.no_grad():
        ours = load_run(run, "cpu").model(tokens_BT)
    assert torch.allclose(logits[1], ours, atol=1e-5)
    assert not torch.allclose(logits[0], ours, atol=1e-3)


def test_what_has_run_keeps_its_rank(runs: Runs) -> None:
    """And its alpha; a stage that has not begun may have others, or none."""
    runs.train("r", *schedule(FULL, ADAPTED), *FAST, crash_at=4)
    for edited in ("{rank: 2, alpha: 8}", "{rank: 4, alpha: 16}", "{rank: null, alpha: 8}"):
        other = stage("adapted", f"max_steps: 3, trainable: ['{QKV}'], lora: {edited}")
        with pytest.raises(UserError, match=r"E-CKP-24 .*stages\.adapted\.lora .*'rank': 4, 'alpha': 8\.0.* -> "):
            runs.train("r", *schedule(FULL, other), *FAST)
    with pytest.raises(UserError, match=r"E-CKP-24 .*stages\.full\.lora None -> "):
        runs.train("r", *schedule(stage("full", "max_steps: 2, lora: {rank: 1}"), ADAPTED), *FAST)
    run = runs.train("r", *schedule(FULL, ADAPTED, STILL_ADAPTED), *FAST)
    edited = runs.train("ahead", *schedule(FULL, STILL_ADAPTED), *FAST, crash_at=2)
    runs.train("ahead", *schedule(FULL, ADAPTED, STILL_ADAPTED), *FAST)
    assert state(edited, 6) == state(run, 6)


def test_a_damaged_last_checkpoint_of_the_stage_before(runs: Runs) -> None:
    """Without the border's checkpoint the stage is trained on from the one before it, adapters apart."""
    words = [*schedule(FULL, ADAPTED, LAST), *FAST]
    whole = runs.train("whole", *words)
    run = runs.train("r", *words)
    remove(run, 5, 6, 7, 8)
    runs.train("r", *words)
    assert state(run, 8) == state(whole, 8)


def test_an_export_is_merged(runs: Runs) -> None:
    """Under the model's own names, and so held against what transformers computes of it."""
    run = runs.train("r", *schedule(FULL, ADAPTED), *FAST, "position=rope")
    expected = merged(run, 5, 4, 2.0)
    with open_source(run) as source:
        assert {name: source.read(name).numpy().tobytes() for name in source.names} == expected
    folder = exporting.export_run(
        ExportConfig(run=str(run), to=str(runs.folder / "out"), form="own", tokenizer="none", parity_tokens=16)
    )
    with open_source(folder) as exported:
        assert {name: exported.read(name).numpy().tobytes() for name in exported.names} == expected
