"""python -m data_prep mix: the mixture to a token budget, as a table and a data choice for training.

A group's share is relative to the other groups; within a group a source counts by its weight, or by its tokens. All of
it is exact (fractions); what is written are decimals of DIGITS places which add up to 1, group by group.
"""

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction

import yaml

from coca_train.config.corpus_schema import CorpusConfig, MixConfig, PrepareConfig
from coca_train.runtime.durable import write_json, write_text
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import markdown, percent, plain, short
from data_prep.manifest import Corpus, Manifest

DIGITS = 8
EVALUATIONS = ("valid", "eval", "test")  # books_valid, else books_eval, ... is the evaluation set of books
HEADER = ("group", "source", "documents", "tokens", "share", "drawn", "epochs", "validated on")


@dataclass(frozen=True)
class Share:
    """A source in training. weight: share of all training tokens; drawn: tokens read of it in mix.tokens.

    valid: the dataset it is validated on, `<source>_valid` as a rule, None without one.
    """

    source: str
    group: str
    documents: int
    tokens: int
    weight: Fraction
    drawn: Fraction
    valid: str | None

    @property
    def epochs(self) -> Fraction:
        return self.drawn / self.tokens


@dataclass(frozen=True)
class Plan:
    """A mixture to a token budget. groups: share of each; unused: source -> why training does not read it."""

    name: str
    tokens: int
    max_epochs: float
    groups: dict[str, Fraction]
    shares: list[Share]
    unused: dict[str, str]

    @property
    def lasts(self) -> int:
        """Return the training tokens until the first source has been seen max_epochs times."""
        return tokens_until_repeated(((share.tokens, share.weight) for share in self.shares), self.max_epochs)

    def warnings(self) -> list[str]:
        """Return what to know before training, a line each."""
        limit, lines = as_fraction(self.max_epochs), []
        for share in self.shares:
            if share.epochs > limit:
                needed, largest = float(share.drawn / limit), float(limit * share.tokens / self.tokens)
                lines.append(
                    f"{share.source}: seen {float(share.epochs):.3g} times (mix.max_epochs={self.max_epochs:g}); "
                    f"it has {short(share.tokens)} tokens, it needs {short(needed)}, "
                    f"or a share of at most {percent(largest)}"
                )
        lines += [f"{share.source}: nothing to validate on" for share in self.shares if share.valid is None]
        return lines


def tokens_until_repeated(sources: Iterable[tuple[int, Fraction]], max_epochs: float) -> int:
    """Return the training tokens until the first source has been seen max_epochs times. sources: (tokens, share) of
    each."""
    return int(min(as_fraction(max_epochs) * tokens / share for tokens, share in sources))


def as_fraction(number: float) -> Fraction:
    """Return a float as the decimal it prints as."""
    return Fraction(str(number))


def plan(corpus: CorpusConfig, mix: MixConfig, manifest: Manifest) -> Plan:
    """Plan the mixture of a finished corpus.

    Raises DataError E-TOK-23 for a source that is not in the corpus, E-TOK-24 for a group or source without documents
    to train on.
    """
    datasets = manifest["datasets"]
    trained = {name: source for name, source in sorted(corpus.sources.items()) if source.hold_out != "all"}
    for name in sorted(corpus.sources):
        if name not in manifest["sources"]:
            raise DataError(
                f"E-TOK-23 corpus.sources.{name}: is not in the corpus that was made, which has "
                f"{', '.join(manifest['sources'])}. Fix: python -m data_prep tokenize, in another corpus.dir; or leave "
                f"it out: ~corpus.sources.{name}"
            )
        if name in trained and f"{name}_train" not in datasets:
            raise DataError(
                f"E-TOK-24 corpus.sources.{name}: has no document to train on. Fix: python -m data_prep stats says "
                f"what was left out and why; or ~corpus.sources.{name}"
            )
    for group in mix.groups:
        if all(source.group != group or source.hold_out == "all" for source in corpus.sources.values()):
            raise DataError(
                f"E-TOK-24 mix.groups.{group}: no source of this group is trained on (hold_out=all). Fix: remove it: "
                f"~mix.groups.{group}"
            )
    units_of_group = apportion([as_fraction(group.share) for group in mix.groups.values()], 10**DIGITS)
    groups = dict(zip(mix.groups, units_of_group, strict=True))
    weights: dict[str, int] = {}
    for group, units in groups.items():
        members = {name: source for name, source in trained.items() if source.group == group}
        sizes = [
            as_fraction(s.weight) if s.weight else Fraction(datasets[f"{n}_train"]["tokens"])
            for n, s in members.items()
        ]
        weights |= dict(zip(members, apportion(sizes, units), strict=True))
    unit = Fraction(1, sum(weights.values()))
    valid = _held_out(corpus, set(datasets))
    records = {name: datasets[f"{name}_train"] for name in trained}
    tokens = mix.tokens
    if tokens is None:
        tokens = tokens_until_repeated(((records[n]["tokens"], weights[n] * unit) for n in trained), mix.max_epochs)
    shares = []
    for name, source in trained.items():
        record, weight = records[name], weights[name] * unit
        shares.append(
            Share(name, source.group, record["documents"], record["tokens"], weight, weight * tokens, valid.get(name))
        )
    order = list(mix.groups)
    shares.sort(key=lambda share: (order.index(share.group), -share.weight, share.source))
    used = set(valid.values())
    unused = {name: "not in the configuration" for name in sorted(set(manifest["sources"]) - set(corpus.sources))}
    for name in sorted(set(corpus.sources) - set(trained)):
        partner = next((source for source, dataset in valid.items() if dataset == f"{name}_valid"), None)
        unused[name] = f"validates {partner}" if f"{name}_valid" in used else "an evaluation set, not read in training"
    return Plan(corpus.name, tokens, mix.max_epochs, {g: u * unit for g, u in groups.items()}, shares, unused)


def apportion(sizes: list[Fraction], units: int) -> list[int]:
    """Apportion whole units by size, largest remainders first (Hamilton's method). Nothing gets less than one unit,
    and only where that is too much for it do they add up to more."""
    total = sum(sizes, Fraction())
    quotas = [size * units / total for size in sizes]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(sizes)), key=lambda i: (counts[i] - quotas[i], i))
    for i in by_remainder[: units - sum(counts)]:
        counts[i] += 1
    return [max(1, count) for count in counts]


def _held_out(corpus: CorpusConfig, datasets: set[str]) -> dict[str, str]:
    """Return for each trained source the dataset it is validated on: its held-out documents, else its evaluation
    set."""
    evaluations = {name for name, source in corpus.sources.items() if source.hold_out == "all"}
    dataset_of = {}
    for name in corpus.sources.keys() - evaluations:
        sets = [other for what in EVALUATIONS if (other := f"{name}_{what}") in evaluations]
        dataset = next((f"{one}_valid" for one in [name, *sets] if f"{one}_valid" in datasets), None)
        if dataset is not None:
            dataset_of[name] = dataset
    return dataset_of


def data_choice(planned: Plan, folder: str, tokenizer: str) -> dict[str, object]:
    """Return the data choice that training reads: what differs from the defaults of DataConfig.

    folder: of the corpus; tokenizer: its file, from there (or absolute).
    """
    sources = {
        share.source: {
            "path": f"${{data.dir}}/{share.source}_train",
            "valid_path": None if share.valid is None else f"${{data.dir}}/{share.valid}",
            "weight": float(share.weight),
        }
        for share in planned.shares
    }
    file = tokenizer if tokenizer.startswith("/") else f"${{data.dir}}/{tokenizer}"
    return {"dir": folder, "tokenizer": file, "sources": sources}


def as_json(planned: Plan) -> dict[str, object]:
    """Return the plan for report/mix.json; fractions become numbers."""
    tree = asdict(planned) | {"lasts": planned.lasts, "warnings": planned.warnings()}
    tree["groups"] = {name: float(share) for name, share in planned.groups.items()}
    for record, share in zip(tree["shares"], planned.shares, strict=True):
        record |= {"weight": float(share.weight), "drawn": float(share.drawn), "epochs": float(share.epochs)}
    return tree


def run(config: PrepareConfig) -> int:
    """Print the plan, write report/mix.{md,json} and config/data/<name>.yaml below corpus.dir."""
    corpus = Corpus(config)
    planned = plan(config.corpus, config.mix, corpus.manifest)
    choice = corpus.folder / "config" / "data" / f"{planned.name}.yaml"
    tree = data_choice(planned, os.path.abspath(corpus.folder), corpus.manifest["tokenizer"]["file"])
    write_text(choice, _comment(planned) + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    write_json(corpus.report / "mix.json", as_json(planned))
    write_text(corpus.report / "mix.md", f"# Mixture {planned.name}\n\n{_text(planned, markdown)}")
    print(_text(planned, plain))
    print(
        f"Train on it: python -m coca_train --config-dir {shlex.quote(str(choice.parent.parent))} data={planned.name}"
    )
    return 0


def _comment(planned: Plan) -> str:
    parts = ", ".join(f"{percent(float(share))} {name}" for name, share in planned.groups.items())
    sets = ", ".join(f"<name>_{what}" for what in EVALUATIONS)
    return (
        f"# Corpus {planned.name}: {parts}; planned for {planned.tokens:,} tokens, written by python -m data_prep mix\n"
        f"# valid_path: the source's own held-out documents; where there are none, the evaluation source {sets}\n"
    )


def _text(planned: Plan, table: Callable[[Sequence[str], Sequence[Sequence[str]], int], str]) -> str:
    """Render the plan in words and one table."""
    groups = ", ".join(f"{name} {percent(float(share))}" for name, share in planned.groups.items())
    rows = []
    for share in planned.shares:
        numbers = [f"{share.documents:,}", short(share.tokens), percent(float(share.weight)), short(float(share.drawn))]
        epochs, valid = f"{float(share.epochs):.3g}", share.valid or "nothing"
        rows.append([share.group, share.source, *numbers, epochs, valid])
    lines = [f"{short(planned.tokens)} tokens of training: {groups}\n", table(HEADER, rows, 2)]
    seen = f"the first source has been seen mix.max_epochs={planned.max_epochs:g} times"
    if planned.tokens > planned.lasts:
        seen += f": mix.tokens={planned.lasts} would fit"
    lines.append(f"After {short(planned.lasts)} tokens of training {seen}.\n")
    notes = [f"* Warning: {warning}\n" for warning in planned.warnings()]
    notes += [f"* Not trained on: {name} ({why})\n" for name, why in planned.unused.items()]
    return "\n".join([*lines, "".join(notes)])
