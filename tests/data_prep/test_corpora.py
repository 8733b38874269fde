"""The corpora that come along: each loads, says how to get its sources, and fits what training reads of it."""

from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
import yaml

from coca_train.config.corpus_schema import CorpusSourceConfig, PrepareConfig
from coca_train.config.files import choices, config_dir
from coca_train.config.schema import Config
from coca_train.data.corpus_config import load
from coca_train.settings import load as load_training

FOLDER = Path(config_dir())
GIVEN = {"files": ["corpus.sources.text.files=[raw/*.jsonl]"]}
CORPORA = [path.stem for path in sorted((FOLDER / "corpus").glob("*.yaml")) if not path.stem.startswith("_")]
REAL = {"pile_code", "pg19_64k", "long_data_mistral", "proof_pile", "gov_report"}
EVALUATIONS = {"proof_pile", "gov_report"}


@cache
def prepared(name: str) -> PrepareConfig:
    return load([f"corpus={name}", *GIVEN.get(name, [])])


@cache
def trained(name: str) -> Config:
    return load_training([f"data={name}"]).config


def test_the_real_corpora_are_there() -> None:
    assert set(CORPORA) >= REAL


@pytest.mark.parametrize("name", CORPORA)
def test_it_loads_and_its_first_lines_say_what_it_is(name: str) -> None:
    config = prepared(name)
    lines = (FOLDER / "corpus" / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    assert lines[1].startswith("# ") and len(lines[1]) > 20
    assert any(line.startswith("#") and "python -m data_prep" in line and "corpus" in line for line in lines)
    assert config.corpus.name not in choices("data", (config_dir(),))  # `mix` writes a data choice of this name


@pytest.mark.parametrize("name", sorted(REAL))
def test_every_source_says_its_licence_and_how_to_get_it(name: str) -> None:
    for source in prepared(name).corpus.sources.values():
        assert source.licence not in ("", "unknown", "yours")
        assert len(source.about) >= 40
        assert "\n" not in source.about  # it is shown inside one-line messages
        assert source.kind == "hub" and source.hub and source.hub.count("/") == 1


@pytest.mark.parametrize("name", sorted(REAL))
def test_only_what_differs_is_written_down(name: str) -> None:
    plain = asdict(CorpusSourceConfig())
    written = yaml.safe_load((FOLDER / "corpus" / f"{name}.yaml").read_text())
    for source, settings in written["corpus"]["sources"].items():
        for key, value in settings.items():
            assert key in plain, (source, key)
            assert value != plain[key] or key in ("about", "licence"), (source, key)


def test_the_papers_mixture() -> None:
    config = prepared("pile_code")
    shares = {name: group.share for name, group in config.mix.groups.items()}
    assert shares == {"text": 0.75, "code": 0.25}
    assert config.mix.tokens == 50_000_000_000
    groups = {name: source.group for name, source in config.corpus.sources.items()}
    assert groups == {"pile": "text", "bookcorpus": "text", "wikipedia": "text", "github_code": "code"}
    code = config.corpus.sources["github_code"]
    assert (code.text_field, code.filter.stars_field, code.filter.min_stars) == ("content", "max_stars_count", 1)
    assert code.filter.language_field == "lang" and "Python" in code.filter.languages
    assert code.filter.languages == sorted(code.filter.languages)
    experiment = load_training(["+experiment=coca_350m", "train.micro_batch_size=256"]).config
    assert config.tokenizer.vocab_size == experiment.model.vocab_size
    assert experiment.data == trained("pile_code").data


@pytest.mark.parametrize(
    ("name", "recipe"), [("pg19_64k", "yarn_llama2_7b_64k"), ("long_data_mistral", "yarn_mistral_7b_64k")]
)
def test_yarn_reads_its_models_own_tokens_from_where_the_corpus_puts_them(name: str, recipe: str) -> None:
    config, run = prepared(name), load_training([f"+experiment={recipe}"], launch=False).config
    assert run.data == trained(name).data and Path(run.data.dir) == Path(config.corpus.dir)
    assert config.tokenizer.import_from is not None
    datasets = {f"{of}_train" for of, source in config.corpus.sources.items() if source.hold_out != "all"}
    assert {Path(source.path).name for source in run.data.sources.values()} == datasets


@pytest.mark.parametrize("name", ["pile_code", "pile_code_llama"])
def test_the_mixture_makes_what_the_data_choice_of_its_name_reads(name: str) -> None:
    config, data = prepared(name), trained(name).data
    assert Path(config.corpus.dir) == Path(data.dir)
    assert Path(config.tokenizer.path) == Path(data.tokenizer)
    assert set(config.corpus.sources) == set(data.sources)
    text = {name: data.sources[name].weight for name, s in config.corpus.sources.items() if s.group == "text"}
    assert sum(text.values()) == pytest.approx(0.75)
    for of, source in config.corpus.sources.items():
        assert Path(data.sources[of].path) == Path(config.corpus.dir) / f"{of}_train"
        valid = data.sources[of].valid_path
        assert valid is None or Path(valid) == Path(config.corpus.dir) / f"{of}_valid"
        assert source.hold_out == "hash"
        if source.group == "text":
            assert source.weight == data.sources[of].weight


def test_the_mixture_for_llama_is_the_same_text_in_its_own_tokens() -> None:
    ours, llama = prepared("pile_code"), prepared("pile_code_llama")
    assert llama.corpus.sources == ours.corpus.sources and llama.mix.groups == ours.mix.groups
    assert llama.corpus.dir != ours.corpus.dir and llama.tokenizer.path != ours.tokenizer.path
    assert (ours.tokenizer.import_from, llama.tokenizer.import_from) == (None, "models/llama_7b")
    recipe = load_training(["+experiment=coca_llama_7b", "train.micro_batch_size=256", "engine=local"]).config
    assert recipe.data == trained("pile_code_llama").data
    assert recipe.model.vocab_size == llama.tokenizer.vocab_size == 32_000
    assert llama.mix.tokens == 3 * recipe.train.max_steps * recipe.train.global_batch_size * recipe.train.seq_len


def test_the_splits_of_pg19_stay_as_its_authors_made_them() -> None:
    config = prepared("pg19_64k")
    splits = {name: (source.hub_split, source.hold_out) for name, source in config.corpus.sources.items()}
    assert splits == {"books": ("train", "none"), "books_valid": ("validation", "all"), "books_test": ("test", "all")}
    assert config.mix.tokens == 400 * 64 * 65_536  # YaRN: 400 steps of 64 segments
    assert config.tokenizer.import_from is not None


@pytest.mark.parametrize("name", sorted(EVALUATIONS))
def test_evaluation_sets_are_never_trained_on(name: str) -> None:
    config = prepared(name)
    assert {source.hold_out for source in config.corpus.sources.values()} == {"all"}
    assert config.tokenizer.import_from is not None  # the tokenizer is that of the model
    assert Path(config.corpus.dir).name == name


def test_the_data_folder_can_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCA_TRAIN_DATA", "/big/disk")
    assert load(["corpus=pile_code"]).corpus.dir == "/big/disk/pile_code"
    assert load_training(["data=pile_code"]).config.data.dir == "/big/disk/pile_code"
