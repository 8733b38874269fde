"""python -m data_prep mix: the mixture to a token budget, as a table, a picture and a data choice for training."""

import os
import shlex

import yaml

from coca_train.runtime.durable import write_json, write_text
from coca_train.runtime.printing import markdown, percent, plain, short
from data_prep.looking.figures import mixture_picture
from data_prep.looking.finished import Corpus
from data_prep.looking.mixing import EVALUATIONS, Plan, as_json, data_choice, plan
from data_prep.schema import PrepareConfig

HEADER = ("group", "source", "documents", "tokens", "share", "drawn", "epochs", "validated on")


def run(config: PrepareConfig) -> int:
    """Print the plan, write report/mix.{md,png,json} and config/data/<name>.yaml below corpus.dir."""
    corpus = Corpus(config)
    planned = plan(config.corpus, config.mix, corpus.manifest)
    choice = corpus.folder / "config" / "data" / f"{planned.name}.yaml"
    tree = data_choice(planned, os.path.abspath(corpus.folder), corpus.manifest["tokenizer"]["file"])
    write_text(choice, _comment(planned) + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    write_json(corpus.report / "mix.json", as_json(planned))
    write_text(
        corpus.report / "mix.md", f"# Mixture {planned.name}\n\n{_text(planned, markdown)}\n![mixture](mix.png)\n"
    )
    mixture_picture(corpus.report / "mix.png", planned)
    print(_text(planned, plain))
    print(f"Picture: {corpus.report / 'mix.png'}")
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


def _text(planned: Plan, table) -> str:
    """The plan in words and one table."""
    groups = ", ".join(f"{name} {percent(float(share))}" for name, share in planned.groups.items())
    lines = [f"{short(planned.tokens)} tokens of training: {groups}\n", table(HEADER, _rows(planned), 2)]
    lines.append(
        f"After {short(planned.lasts)} tokens of training the first source has been seen mix.max_epochs="
        f"{planned.max_epochs:g} times.\n"
    )
    notes = [f"* Warning: {warning}\n" for warning in planned.warnings()]
    notes += [f"* Not trained on: {name} ({why})\n" for name, why in planned.unused.items()]
    return "\n".join([*lines, "".join(notes)])


def _rows(planned: Plan) -> list[list[str]]:
    return [
        [
            share.group,
            share.source,
            f"{share.documents:,}",
            short(share.tokens),
            percent(float(share.weight)),
            short(float(share.drawn)),
            f"{float(share.epochs):.3g}",
            share.valid or "nothing",
        ]
        for share in planned.shares
    ]
