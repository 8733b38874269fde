"""Ranks that share sequences learn what one process learns (models/ulysses.py): every ZeRO stage, over gloo."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from coca_train import checkpoint, engine, positions
from coca_train.attention import patterns
from coca_train.config.schema import OptimConfig
from coca_train.engine.base import Engine
from coca_train.models.compiled import CompiledBlocks
from coca_train.models.init import init_parameter
from coca_train.models.recompute import CHECKPOINTING
from coca_train.models.transformer import Transformer
from coca_train.runtime import IGNORE, dist
from coca_train.testing.parts import MODEL, packed
from tests import states
from tests.cases import sampled
from tests.engine.scenarios import OPTIM, Batch, digest, engine_config, lr_of, meta
from tests.faults.fork_server import ForkServer, values
from tests.models.conftest import SCHEMES

VOCAB, LENGTH, GLOBAL_BATCH = 101, 24, 4
CASES = {name: SCHEMES[name] for name in ("coca", "coca_strict", "rope", "alibi_folded", "t5", "fox", "fire", "tupe")}
CASES["clex"] = {
    "scheme": "rope",
    "rotary_pct": 1.0,
    "rope_scaling": {
        "name": "clex", "theta": 100.0, "original_seq_len": 12, "max_factor": 4, "param_factor": 1, "ode_step": 0.5,
    },
}  # fmt: skip
TIGHT = OptimConfig(**{**OPTIM.__dict__, "max_grad_norm": 1e6})  # so that Adam's first moment is the gradient


def batches(step: int, sequence_parallel: int, micro: int, documents: bool) -> list[Batch]:
    """This reader's micro batches: whole rows, whatever the slice."""
    reader, n_readers = dist.reader(sequence_parallel)
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(0, VOCAB, (GLOBAL_BATCH, LENGTH + 1), generator=generator)
    tokens, targets = rows[:, :-1], rows[:, 1:].clone()
    for row in range(GLOBAL_BATCH):
        targets[row, : 5 * row] = IGNORE  # slices with few targets, and with none
    pos, doc = torch.arange(LENGTH).expand(GLOBAL_BATCH, -1), None
    if documents:
        pos, doc = packed([5, 13, 6], [24], [11, 2, 11], [1, 23])
    share, out = GLOBAL_BATCH // n_readers, []
    for first in range(reader * share, (reader + 1) * share, micro):
        some = slice(first, first + micro)
        out.append(Batch(tokens[some], targets[some], pos[some], None if doc is None else doc[some]))
    return out


def build(scheme: str, sequence_parallel: int, micro: int, optim: OptimConfig = OPTIM, **changes: Any) -> Engine:
    torch.set_num_threads(1)
    settings, seen = positions.settings(CASES[scheme]), patterns.settings({"name": "causal"})
    return engine.build(
        engine_config(sequence_parallel=sequence_parallel, **changes),
        optim,
        lambda: Transformer(MODEL, settings, seen, vocab_size=VOCAB, max_seq_len=LENGTH),
        partial(init_parameter, model=MODEL, position=settings, seed=1),
        trainable=["*"],
        micro_batch_size=micro,
        accumulation=GLOBAL_BATCH // dist.reader(sequence_parallel)[1] // micro,
    )


def train(
    scheme: str = "coca",
    sequence_parallel: int = 1,
    steps: int = 1,
    micro: int = 1,
    documents: bool = True,
    export: str = "",
    load: str = "",
    save: str = "",
    compiled: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Train from initial weights or the newest checkpoint in `load`. export: the gradient of the last step, by name."""
    built = build(scheme, sequence_parallel, micro, TIGHT if export else OPTIM, **changes)
    first = 0
    if compiled:
        built.model.compiled = CompiledBlocks(
            CHECKPOINTING[changes.get("activation_checkpointing", "none")], "aot_eager"
        )
    if load:
        first = checkpoint.load(checkpoint.find(Path(load), "run-1"), built, meta())["step"]
    losses, norms, tokens = [], [], []
    for step in range(first, steps):
        torch.manual_seed(step)
        result = built.train_step(batches(step, sequence_parallel, micro, documents), lr_of(step))
        losses.append(result.loss)
        norms.append(result.grad_norm)
        tokens.append(result.tokens)
    if save:
        assert states.save(Path(save), steps, built, meta(steps)) is None
    if export:
        moments = {name: x.clone() for name, x in states.full_state(built).items() if name.startswith("exp_avg/")}
        if dist.is_main():
            save_file(moments, export)
    answer = {"losses": losses, "norms": norms, "tokens": tokens, "digest": digest(built)}
    if compiled:
        answer["eager"] = built.model.compiled.eager
    built.close()
    return answer


def error(ours: Path, theirs: Path) -> float:
    """The largest difference of two gradients, over the largest number of the tensor it is in."""
    mine, other = load_file(ours), load_file(theirs)
    assert mine.keys() == other.keys()
    return max(float((mine[name] - x).abs().max() / x.abs().max().clamp(min=1e-3)) for name, x in other.items())


RUN = "tests.engine.test_sequence:train"
LAYOUTS = {"2 of 2": (2, 2, 1), "2 of 4": (2, 4, 1), "4 of 4": (4, 4, 1), "2 of 2, no accumulation": (2, 2, 4)}


@pytest.mark.parametrize(
    ("scheme", "stage", "documents", "layout"), sampled(CASES, (0, 1, 2, 3), (True, False), LAYOUTS, strength=1)
)
def test_a_step_equals_one_process(
    server: ForkServer, tmp_path: Path, scheme: str, stage: int, documents: bool, layout: str
) -> None:
    """Loss, and every gradient, in float32 from the same state."""
    size, ranks, micro = LAYOUTS[layout]
    job = {"scheme": scheme, "documents": documents}
    one, micro_of_one = {"kind": "local", "export": str(tmp_path / "one")}, 4 if micro == 4 else 1
    whole = values(server.run(RUN, job | one | {"micro": micro_of_one}))[0]
    shared = {"sequence_parallel": size, "zero_stage": stage, "micro": micro, "export": str(tmp_path / "shared")}
    results = values(server.run(RUN, job | shared, ranks=ranks))
    assert all(result == results[0] for result in results)
    assert results[0]["tokens"] == whole["tokens"]
    if scheme == "clex" and ranks != size:
        return  # it draws for every micro batch, and two readers have fewer of them
    assert results[0]["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert results[0]["norms"] == pytest.approx(whole["norms"], rel=1e-5)
    assert error(tmp_path / "shared", tmp_path / "one") < 1e-5


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3])
def test_resumed_bit_for_bit_within_a_layout_and_closely_in_others(
    server: ForkServer, tmp_path: Path, stage: int
) -> None:
    job: dict[str, Any] = {"scheme": "coca", "steps": 6, "zero_stage": stage}
    shared = job | {"sequence_parallel": 2, "micro": 2}
    whole = values(server.run(RUN, shared, ranks=2))[0]
    values(server.run(RUN, shared | {"steps": 3, "save": str(tmp_path)}, ranks=2))
    resumed = values(server.run(RUN, shared | {"load": str(tmp_path)}, ranks=2))[0]
    assert resumed["losses"] == whole["losses"][3:] and resumed["digest"] == whole["digest"]
    # The same checkpoint, which knows nothing of slices, with four ranks to a sequence and with one.
    for other, ranks in ((4, 4), (1, 1)):
        elsewhere = values(server.run(RUN, shared | {"sequence_parallel": other, "load": str(tmp_path)}, ranks=ranks))[
            0
        ]
        assert elsewhere["losses"] == pytest.approx(whole["losses"][3:], rel=1e-5)


@pytest.mark.slow
def test_bf16_equals_one_process(server: ForkServer) -> None:
    """Keys of CoCA are rounded once more on their way: within what bfloat16 does to a step anyway."""
    for stage in (1, 2, 3):
        job = {"scheme": "coca", "dtype": "bf16", "zero_stage": stage, "steps": 4}
        one = values(server.run(RUN, job))[0]
        shared = values(server.run(RUN, job | {"sequence_parallel": 2}, ranks=2))[0]
        assert shared["losses"] == pytest.approx(one["losses"], rel=2e-3)


def score_sharded() -> dict[str, Any]:
    """Losses of windows of other lengths and stretches on each rank, without a copy of the weights; and once more after
    memory ran out on all ranks in the middle of a forward."""
    wide = replace(MODEL, d_model=320, d_ff=640)  # matrices that ZeRO 3 does not keep whole
    settings, seen = positions.settings(CASES["coca"]), patterns.settings({"name": "causal"})
    torch.set_num_threads(1)
    init = partial(init_parameter, model=wide, position=settings, seed=1)

    def model() -> Transformer:
        return Transformer(wide, settings, seen, vocab_size=VOCAB, max_seq_len=LENGTH, mlp_tile=4)

    built = engine.build(
        engine_config(zero_stage=3), OPTIM, model, init, trainable=["*"], micro_batch_size=1, accumulation=2
    )
    whole = model()
    for name, parameter in whole.named_parameters():
        init(name, parameter.data)
    tokens = torch.randint(0, VOCAB, (1, 25), generator=torch.Generator().manual_seed(dist.rank()))
    wanted = [[(2, 5), (9, 13), (15, 16)], [(0, 20 - 2 * dist.rank())]][dist.rank()]
    errors, held, full = [], [], sum(p.numel() for p in whole.parameters())

    def gathered() -> int:
        return sum(p.numel() for p in built.model.parameters() if p.numel() > 100_000)

    watch = built.model.blocks[1].mlp.register_forward_hook(lambda *_: held.append(gathered()))
    for attempt in range(3):
        with built.eval_module() as module:
            given = (tokens[:, : 24 - 4 * dist.rank()], tokens[:, 1 : 25 - 4 * dist.rank()])
            if attempt == 1:
                fails = module.blocks[1].mlp.up.register_forward_pre_hook(_out_of_memory)
                with pytest.raises(MemoryError):
                    module.losses(*given)
                fails.remove()
            got = module.losses(*given, wanted=wanted)
            errors.append(float((got - whole.eval().losses(*given, wanted=wanted)).abs().max()))
            assert module is built.model and gathered() == 0
    watch.remove()
    loss = built.train_step(batches(0, 1, 1, documents=False), 1e-3).loss
    built.close()
    return {"errors": errors, "share": max(held) / full, "loss": loss}


def _out_of_memory(*_: Any) -> None:
    raise MemoryError


def test_zero_3_evaluates_without_a_copy_of_the_weights(server: ForkServer) -> None:
    for result in values(server.run("tests.engine.test_sequence:score_sharded", {}, ranks=2)):
        assert max(result["errors"]) < 1e-5
        assert result["share"] < 0.5
        assert result["loss"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["none", "selective", "full"])
def test_compiled_blocks_keep_the_exchange_in_their_graph(server: ForkServer, way: str) -> None:
    """One graph, or there would be a reason in `eager`; every way of recomputing exchanges again."""
    job = {"scheme": "coca", "sequence_parallel": 2, "steps": 3, "activation_checkpointing": way, "zero_stage": 2}
    plain, compiled = (values(server.run(RUN, job | {"compiled": on}, ranks=2))[0] for on in (False, True))
    assert compiled["eager"] == {}
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-5)
