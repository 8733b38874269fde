"""One machinery, several kinds of configuration: a made-up root, and that the two real ones keep apart."""

from dataclasses import FrozenInstanceError

import pytest
import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config import load as loading
from coca_train.config.fields import options, sections
from coca_train.config.files import choices, config_dir
from coca_train.config.messages import Problem
from coca_train.config.root import Root
from coca_train.config.schema import STRICT
from coca_train.data.corpus_config import PREPARE
from coca_train.data.corpus_config import load as load_corpus
from coca_train.settings import TRAIN
from tests.config.support import has, refused, table


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Soup:
    """What is in it."""

    salt: int = Field(default=2, ge=0, description="[grams]")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Meal:
    """A meal."""

    soups: dict[str, Soup]
    table: Soup


def too_salty(sections, launch):
    total = sum(soup.salt for soup in sections["soups"].values()) if "soups" in sections else 0
    return [Problem("E-CFG-99", ("table.salt",), "too salty", "less")] if total > 10 else []


MEAL = Root(
    name="meal",
    schema=Meal,
    groups=("course", "extra"),
    check=too_salty,
    command="kitchen",
    examples="table.salt=1, or group=choice, e.g. course=first",
    place="the stove",
    optional_groups=("extra",),
    global_groups=("course", "extra"),
)


@pytest.fixture
def kitchen(tmp_path):
    for name, text in {
        "meal": "defaults: [_self_, {course: first}]\ntable:\n  salt: 1\n",
        "course/first": "# @package _global_\n# The first\nsoups:\n  leek: {}\n  pea:\n    salt: 5\n",
        "course/second": "# @package _global_\nsoups:\n  leek: {}\ntable:\n  salt: 7\n",
        "course/bare": "soups:\n  leek: {}\n",
        "extra/salt": "# @package _global_\ntable:\n  salt: 9\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text)
    return (tmp_path,)


def wrong(root, words, dirs=()):
    return "\n".join(refused(words, dirs, lambda words, dirs=(): loading.load(loading.assemble(root, words, dirs))))


@pytest.mark.parametrize(
    ("words", "salt"),
    [
        ([], 1),
        (["course=second"], 7),
        (["course=second", "table.salt=8"], 8),
        (["course=second", "extra=salt"], 9),
        (["course=second", "+extra=salt"], 9),
    ],
)
def test_a_root_of_its_own(kitchen, words, salt):
    loaded = loading.load(loading.assemble(MEAL, words, kitchen))
    assert isinstance(loaded.config, Meal)
    assert loaded.config.table.salt == yaml.safe_load(loaded.yaml)["table"]["salt"] == salt
    with pytest.raises(FrozenInstanceError):
        loaded.config.table.salt = 3


@table("""
soups.pea.salt=9 table.salt=3 | E-CFG-99 | command line table.salt=3: too salty
salt | E-CFG-16 | e.g. table.salt=1, or group=choice, e.g. course=first
hydra.run.dir=x | E-CFG-16 | set the stove for the place
course=firts | E-CFG-32 | the choices are bare, first, second. Fix: write course=first
--x | E-CFG-16 | not a flag of kitchen. Fix: see `python -m kitchen --help`
zzzzzz=1 | E-CFG-01 | see `python -m kitchen --help`
qqqqq.zzzzz=1 | E-CFG-01 | see `python -m kitchen --help`
soups.pea=5 | E-CFG-34 | soups.pea=5: is a section, not a value
soups=5 | E-CFG-34 | soups
course=bare | E-CFG-01 | course.soups.leek
  | a course file sets options from the top. Fix: make '# @package _global_' the first line
""")
def test_its_own_rules_and_words(kitchen, words, code, texts):
    has(refused(words, kitchen, lambda words, dirs=(): loading.load(loading.assemble(MEAL, words, dirs))), code, texts)


def test_defaults_fill_what_parts_leave_out_and_nothing_else(kitchen):
    meal = loading.load(loading.assemble(MEAL, ["+soups.new={}", "soups.other.salt=1"], kitchen)).config
    assert {name: soup.salt for name, soup in meal.soups.items()} == {"leek": 2, "pea": 5, "new": 2, "other": 1}
    (kitchen[0] / "course" / "first.yaml").write_text("# @package _global_\nsoups:\n  pea:\n    salt: -5\n")
    assert "first.yaml:4 soups.pea.salt=-5" in wrong(MEAL, [], kitchen)


def test_the_real_roots_know_nothing_of_each_other():
    assert set(sections(TRAIN)) & set(sections(PREPARE)) == set()
    assert not {option.key for option in options(TRAIN)} & {option.key for option in options(PREPARE)}
    assert wrong(TRAIN, ["corpus/x=files"]).startswith("E-CFG-32 ")
    for root, word in ((TRAIN, "corpus=files"), (PREPARE, "model=neox_tiny"), (PREPARE, "model.n_layers=2")):
        assert f"E-CFG-01 command line {word}: " in wrong(root, [word])
    assert set(loading.assemble(TRAIN, []).choices) == set(TRAIN.groups) - set(TRAIN.optional_groups)


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
    assert f"E-CFG-04 {path}:11 tokenizer.vocab_size=many" in wrong(PREPARE, ["corpus=mine"], (tmp_path,))
    path.write_text("\n".join(path.read_text().splitlines()[1:]))
    lines = wrong(PREPARE, ["corpus=mine"], (tmp_path,))
    assert lines.startswith(f"E-CFG-01 {path}:3 corpus.corpus.name=x: ") and "@package _global_" in lines
    assert lines.count("\n") == 0  # the rest follows from it


def test_the_defaults_are_the_documented_ones(monkeypatch):
    monkeypatch.delenv("COCA_TRAIN_DATA", raising=False)
    config = load_corpus([FILES])
    assert (config.corpus.name, config.corpus.dir, config.corpus.valid_share) == ("mine", "data/mine", None)
    assert (config.work.shard, config.work.workers, config.work.on_error) == ("0/1", None, "stop")
    assert (config.work.part_bytes, config.work.chunk_bytes, config.work.max_line_bytes) == (2**28, 2**22, 2**26)
    assert (config.mix.tokens, config.leakage.ngram) == (None, 13)
    monkeypatch.setenv("COCA_TRAIN_DATA", "/scratch")
    assert load_corpus([FILES]).tokenizer.path == "/scratch/mine/tokenizer.model"


def test_the_miniature_is_the_papers_mixture():
    config = load_corpus(["corpus=paper_miniature"])
    assert {name: group.share for name, group in config.mix.groups.items()} == {"text": 0.75, "code": 0.25}
    sources = config.corpus.sources
    assert {name for name, source in sources.items() if source.hold_out == "hash"} == {"books", "wikipedia", "code"}
    assert all(source.hold_out == "all" for name, source in sources.items() if name.endswith("_eval"))
