"""The trials that come with the package: they are of one study, and of the data that is made today."""

from pathlib import Path

import pytest

from coca_train.atlas.methods import METHODS, VARIANTS
from coca_train.atlas.study import best_rate
from coca_train.atlas.trials import STORED, Trial, others, read, read_sweep
from coca_train.data.loader import Loader
from coca_train.data.mixture import Mixture
from coca_train.data.packing import Edges
from coca_train.data.tokenizer import Tokenizer
from coca_train.settings import load
from coca_train.training.loop import batch_digest
from data_prep.verbs.diagnostics import ensure


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return [read(path) for path in sorted(STORED.glob("*.json")) if not path.name.endswith(".rates.json")]


def test_they_are_of_one_study(trials: list[Trial]) -> None:
    assert len({trial.protocol for trial in trials}) == 1
    assert others(trials) == []
    rows = {each.name: each for each in (*METHODS, *VARIANTS)}
    words = {each.name: list(each.words) for each in METHODS}
    for trial in trials:
        assert trial.row in rows and list(trial.words)[: len(words[trial.method])] == words[trial.method], trial.row


def test_every_trial_has_the_rate_of_its_sweep(trials: list[Trial]) -> None:
    for trial in trials:
        sweep = read_sweep(STORED / f"{trial.method}.rates.json")
        assert sweep is not None and sweep.protocol == trial.protocol
        assert trial.rate == best_rate(sweep.losses), trial.row


@pytest.mark.slow
def test_they_saw_the_batches_that_are_made_today(
    trials: list[Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch of every seed, from the corpus made again."""
    monkeypatch.setenv("COCA_TRAIN_DATA", str(tmp_path))
    ensure(str(tmp_path / "diagnostics"))
    for seed in sorted({trial.seed for trial in trials}):
        config = load(["+experiment=atlas", f"run.seed={seed}", f"data.seed={seed}"]).config
        tokenizer, train = Tokenizer(config.data.tokenizer), config.train
        edges, n_rows = Edges(tokenizer.bos, tokenizer.eod), train.global_batch_size
        mixture = Mixture(config.data, train.seq_len, tokenizer.vocab_size, n_rows, edges)
        with Loader(mixture, n_rows, n_rows, 0, 1, train.max_steps - 1, 0) as loader:
            (seen,) = {trial.batches for trial in trials if trial.seed == seed}
            assert batch_digest(next(loader)) == seen, seed
