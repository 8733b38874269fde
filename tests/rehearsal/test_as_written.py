"""Every experiment with its own engine as its file has it: ZeRO stage, activation checkpointing, dtype, sequences that
processes share, gradient reduction, optimizer, stages, data. On 1, 2 and 4 processes, as torchrun starts them.

Only widths, lengths, batches and steps are small, and the files that its sources name hold a few lines; every word that
is changed is printed. Nothing is left out of the run, the certificate of its position scheme and the validations
included: under ZeRO 3 a forward pass before the training decides what is gathered later.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from coca_train.config.schema import Config
from coca_train.settings import load, load_saved
from tests.cases import experiments, slow_unless
from tests.faults import real
from tests.faults.fork_server import ForkServer, values
from tests.rehearsal import world
from tests.rehearsal.walk import last_step

SEQ_LEN, STEPS = 64, 2
QUICK = [
    ("quickstart", 2),  # Muon, float32, ZeRO 1
    ("coca_350m", 2),  # ZeRO 2, gradients reduced to their owner
    ("coca_llama_7b", 2),  # ZeRO 3, selective, and a stage that trains T alone
    ("yarn_llama2_7b_128k", 4),  # ZeRO 3, selective, four processes to a sequence, two stages
]


def recipe(name: str, *words: str) -> Config:
    return load([f"+experiment={name}", *words], launch=False).config


def cases() -> list[tuple[str, int]]:
    """(experiment, processes): 1, 2 and 4, or where more share a sequence the fewest that do."""
    out = [("coca_350m", 8)]
    for name in experiments():
        shared = recipe(name).engine.sequence_parallel
        out += [(name, ranks) for ranks in sorted({max(n, shared) for n in (1, 2, 4)})]
    return out


def small(name: str, ranks: int) -> list[str]:
    """The words that make an experiment small."""
    config = recipe(name)
    readers = ranks // config.engine.sequence_parallel
    words = [f"model.{key}={size}" for key, size in world.WIDTH.items()]
    if (kv_heads := world.kv_heads(config.model)) is not None:
        words.append(f"model.n_kv_heads={kv_heads}")
    words += ["model.vocab_size=null", f"train.seq_len={SEQ_LEN}", "train.micro_batch_size=1"]
    words += [f"train.global_batch_size={2 * readers}", f"train.max_steps={STEPS}", "optim.warmup_steps=1"]
    for stage, own in config.stages.items():
        words += [f"stages.{stage}.max_steps={STEPS}"] if own.max_steps is not None else []
        words += [f"stages.{stage}.train.{key}={2 * SEQ_LEN}" for key in own.train if key == "seq_len"]
        words += [f"stages.{stage}.train.{key}={2 * readers}" for key in own.train if key == "global_batch_size"]
        words += [f"stages.{stage}.optim.warmup_steps=1"] if "warmup_steps" in own.optim else []
    words += ["start.path=null", "start.convert=[]"] if config.start.path is not None else []
    words += ["eval.max_tokens=128", "eval.sample_tokens=0", "eval.extrapolation.enabled=false"]
    return [*words, "engine.device=cpu", "engine.timeout_s=60", "tracking.progress_bar=false"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and a small source, text_train and text_valid."""
    folder = tmp_path_factory.mktemp("text")
    real.prepare(folder)
    return folder


def link_data(name: str, text: Path, folder: Path) -> list[str]:
    """Link the text to every place that the sources of an experiment name in `folder`; the words that name it."""
    words = [f"data.dir={folder}", "data.prepare=none"]
    data = recipe(name, *words).data
    links = {data.tokenizer: "tokenizer.model"}
    for source in data.sources.values():
        for path, kind in ((source.path, "train"), (source.valid_path, "valid")):
            links |= {f"{path}{end}": f"text_{kind}{end}" for end in (".bin", ".idx", ".sums")} if path else {}
    for place, file in links.items():
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).symlink_to(text / file)
    return words


@pytest.mark.parametrize(("name", "ranks"), slow_unless(QUICK, cases()))
def test_an_experiment_trains_in_its_own_engine(
    name: str, ranks: int, server: ForkServer, text: Path, tmp_path: Path
) -> None:
    words = [*small(name, ranks), *link_data(name, text, tmp_path / "data")]
    print(f"\n{name} x{ranks}:", *words)
    values(server.command(["coca_train", f"+experiment={name}", *words], ranks=ranks, cwd=tmp_path))
    written, run_dir = recipe(name), tmp_path / "runs" / recipe(name).run.name
    own = replace(written.engine, device="cpu", timeout_s=60)
    assert load_saved(run_dir).config.engine == own
    assert last_step(run_dir) == STEPS * len(written.stages)
