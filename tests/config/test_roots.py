"""One machinery, several kinds of configuration: a made-up root, and that the two real ones keep apart."""

import re
from dataclasses import FrozenInstanceError

import pytest
import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config import load as loading
from coca_train.config.fields import options, sections
from coca_train.config.files import choices, config_dir
from coca_train.config.messages import ConfigError, Problem
from coca_train.config.root import Root
from coca_train.config.schema import STRICT
from coca_train.settings import TRAIN, load
from data_prep.settings import PREPARE
from data_prep.settings import load as load_corpus


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Soup:
    """What is in it."""

    salt: int = Field(ge=0, description="[grams]")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Meal:
    """A meal."""

    soups: dict[str, Soup]
    table: Soup


def too_salty(found, launch):
    total = sum(soup.salt for soup in found["soups"].values()) if "soups" in found else 0
    return [Problem("E-CFG-99", ("table.salt",), "too salty", "less")] if total > 10 else []


MEAL = Root(
    name="meal",
    schema=Meal,
    groups=("course", "extra"),
    check=too_salty,
    command="kitchen",
    examples="table.salt=1, or group=choice, e.g. course=first",
    place="the stove",
    without_default=("extra",),
    from_top=("course", "extra"),
    templates={"soups": "course/_soup"},
)


@pytest.fixture
def kitchen(tmp_path):
    for name, text in {
        "meal": "defaults: [_self_, {course: first}]\ntable:\n  salt: 1\n",
        "course/_soup": "salt: 2\n",
        "course/first": "# @package _global_\n# The first\nsoups:\n  leek: {}\n  pea:\n    salt: 5\n",
        "course/second": "# @package _global_\nsoups:\n  leek: {}\ntable:\n  salt: 7\n",
        "course/bare": "soups:\n  leek: {}\n",
        "extra/salt": "# @package _global_\ntable:\n  salt: 9\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text)
    return (tmp_path,)


def load_root(root, overrides, dirs=()):
    loaded = loading.load(root, overrides, dirs)
    return loaded.config, loaded.yaml


def refused(root, overrides, dirs=()):
    with pytest.raises(ConfigError) as caught:
        load_root(root, overrides, dirs)
    return "\n".join(caught.value.lines)


def test_a_root_of_its_own(kitchen):
    meal, text = load_root(MEAL, [], kitchen)
    assert isinstance(meal, Meal)
    assert yaml.safe_load(text) == {"soups": {"leek": {"salt": 2}, "pea": {"salt": 5}}, "table": {"salt": 1}}
    with pytest.raises(FrozenInstanceError):
        meal.table.salt = 3  # pyright: ignore
    assert load_root(MEAL, ["course=second"], kitchen)[0].table.salt == 7
    assert load_root(MEAL, ["course=second", "table.salt=8"], kitchen)[0].table.salt == 8
    for word in ("extra=salt", "+extra=salt"):
        assert load_root(MEAL, ["course=second", word], kitchen)[0].table.salt == 9


def test_its_own_rules_and_words(kitchen):
    assert "E-CFG-99 command line table.salt=3: too salty" in refused(
        MEAL, ["soups.pea.salt=9", "table.salt=3"], kitchen
    )
    assert "e.g. table.salt=1, or group=choice, e.g. course=first" in refused(MEAL, ["salt"], kitchen)
    assert "set the stove for the place" in refused(MEAL, ["hydra.run.dir=x"], kitchen)
    assert "the choices are bare, first, second. Fix: write course=first" in refused(MEAL, ["course=firts"], kitchen)
    assert "not a flag of kitchen. Fix: see `python -m kitchen --help`" in refused(MEAL, ["--x"], kitchen)
    assert "see `python -m kitchen --help`" in refused(MEAL, ["zzzzzz=1"], kitchen)
    assert "see `python -m kitchen --help`" in refused(MEAL, ["qqqqq.zzzzz=1"], kitchen)


def test_a_template_gives_what_a_part_leaves_out_and_nothing_else(kitchen):
    meal, _ = load_root(MEAL, ["+soups.new={}", "soups.other.salt=1"], kitchen)
    assert {name: soup.salt for name, soup in meal.soups.items()} == {"leek": 2, "pea": 5, "new": 2, "other": 1}
    (kitchen[0] / "course" / "_soup.yaml").write_text("# first line\nsalt: -2\n")
    lines = refused(MEAL, ["+soups.new={}"], kitchen).splitlines()
    assert [line for line in lines if "_soup.yaml:2 soups.leek.salt=-2" in line]
    assert [line for line in lines if "command line soups.new.salt=-2" in line]  # made there, as a whole
    assert "soups.pea" not in "\n".join(lines)
    (kitchen[0] / "course" / "first.yaml").write_text("# @package _global_\nsoups:\n  pea:\n    salt: -5\n")
    assert re.search(r"first.yaml:4 soups.pea.salt=-5", refused(MEAL, [], kitchen))
    assert "is a section, not a value" in refused(MEAL, ["soups.pea=5"], kitchen)
    assert "soups" in refused(MEAL, ["soups=5"], kitchen)


def test_a_file_that_should_set_options_from_the_top(kitchen):
    lines = refused(MEAL, ["course=bare"], kitchen)
    assert "course.soups.leek" in lines
    assert "a course file sets options from the top. Fix: make '# @package _global_' the first line" in lines


def test_the_real_roots_know_nothing_of_each_other():
    assert set(sections(TRAIN)) & set(sections(PREPARE)) == set()
    assert not {option.key for option in options(TRAIN)} & {option.key for option in options(PREPARE)}
    assert "there is no config group" in refused(TRAIN, ["corpus/x=files"])
    assert "E-CFG-01 command line corpus=files: unknown key" in refused(TRAIN, ["corpus=files"])
    assert "E-CFG-01 command line model=neox_tiny: unknown key" in refused(PREPARE, ["model=neox_tiny"])
    assert "E-CFG-01 command line model.n_layers=2: unknown key" in refused(PREPARE, ["model.n_layers=2"])
    assert set(load([]).choices) == set(TRAIN.groups) - set(TRAIN.without_default)


FILES = "corpus.sources.text.files=[a.jsonl]"


@pytest.mark.parametrize("name", choices("corpus", (config_dir(),)))
def test_every_corpus_loads(name):
    config = load_corpus([f"corpus={name}", *([FILES] if name == "files" else [])])
    assert {source.group for source in config.corpus.sources.values()} <= set(config.mix.groups)
    for source in config.corpus.sources.values():
        assert source.licence not in ("", "unknown")


def test_a_corpus_may_set_anything_and_messages_name_its_file(tmp_path):
    (tmp_path / "corpus").mkdir()
    path = tmp_path / "corpus" / "mine.yaml"
    text = "# @package _global_\n# Mine\ncorpus:\n  name: x\n  sources:\n    a:\n      files: [a.jsonl]\n"
    path.write_text(text + "mix:\n  groups: {text: {share: 1}}\ntokenizer:\n  vocab_size: 777\n")
    config = load_corpus(["corpus=mine"], (tmp_path,))
    assert (config.tokenizer.vocab_size, config.corpus.dir) == (777, "data/x")
    assert config.tokenizer.path == "data/x/tokenizer.model"
    assert load_corpus(["corpus=mine", "tokenizer.vocab_size=9"], (tmp_path,)).tokenizer.vocab_size == 9
    path.write_text(path.read_text().replace("777", "many"))
    assert f"E-CFG-04 {path}:11 tokenizer.vocab_size=many" in refused(PREPARE, ["corpus=mine"], (tmp_path,))
    path.write_text("\n".join(path.read_text().splitlines()[1:]))
    lines = refused(PREPARE, ["corpus=mine"], (tmp_path,))
    assert "corpus.tokenizer.vocab_size=many: unknown key: a corpus file sets options from the top" in lines


def test_the_defaults_are_the_documented_ones(monkeypatch):
    monkeypatch.delenv("COCA_TRAIN_DATA", raising=False)
    config = load_corpus([FILES])
    assert (config.corpus.name, config.corpus.dir, config.corpus.valid_share) == ("mine", "data/mine", 0.005)
    assert (config.work.shard, config.work.workers, config.work.on_error) == ("0/1", None, "stop")
    assert (config.work.part_bytes, config.work.chunk_bytes, config.work.max_line_bytes) == (2**28, 2**22, 2**26)
    assert (config.mix.tokens, config.leakage.ngram) == (50_000_000_000, 13)
    monkeypatch.setenv("COCA_TRAIN_DATA", "/scratch")
    assert load_corpus([FILES]).tokenizer.path == "/scratch/mine/tokenizer.model"


def test_the_miniature_is_the_papers_mixture():
    config = load_corpus(["corpus=paper_miniature"])
    assert {name: group.share for name, group in config.mix.groups.items()} == {"text": 0.75, "code": 0.25}
    sources = config.corpus.sources
    assert {name for name, source in sources.items() if source.hold_out == "hash"} == {"books", "wikipedia", "code"}
    assert all(source.hold_out == "all" for name, source in sources.items() if name.endswith("_eval"))
