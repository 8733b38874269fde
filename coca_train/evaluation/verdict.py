"""The verdict over a model: the least of what was asked of it, in one line (definition: measures/reach.py).

Of a model with several seeds each seed is judged by itself, and the model reads as far as the seed that reads the
least. So no seed lends it reach: too much is said of it only where too much is said of that seed, in at most 5 % of
draws.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from coca_train.evaluation.measures.reach import LEAST, Part
from coca_train.evaluation.results import Cell, Evaluation
from coca_train.evaluation.seeds import model_of
from coca_train.report.blocks import Verdict

NOTHING = "nothing of it was measured"
Asked = Mapping[tuple[str, str], Sequence[Part]]  # by model and variant, what their cells say


def verdicts(evaluation: Evaluation, asked: Asked) -> list[Verdict]:
    """One a model and variant of whom anything was asked, its seeds together."""
    models, rows = model_of(evaluation), dict[str, tuple[int, list[Sequence[Part]]]]()
    for row in evaluation.rows():
        if parts := asked.get(row.name):
            label = models[row.subject.name] + row.label.removeprefix(row.subject.name)
            rows.setdefault(label, (row.subject.training_window, []))[1].append(parts)
    return [
        verdict(label, window, seeds[0]) if len(seeds) == 1 else _over_seeds(label, window, seeds)
        for label, (window, seeds) in rows.items()
    ]


def unknown(part: Part, cells: Iterable[Cell]) -> Part:
    """The same part of a model that could be asked it at no length, with the reason."""
    return part._replace(evidence=(), stopped=next((cell.absence for cell in cells if cell.absence), NOTHING))


def _over_seeds(label: str, training_window: int, seeds: Sequence[Sequence[Part]]) -> Verdict:
    """The least of all seeds, part by part, and how far each of them reads."""
    least: dict[str, Part] = {}
    for part in (part for parts in seeds for part in parts):
        least[part.name] = min(least.get(part.name, part), part, key=_reach)
    whole = verdict(label, training_window, list(least.values()))
    if whole.state == "unknown":
        return whole
    reaches = [min(parts, key=_reach).reach for parts in seeds]
    said = [True] * len(seeds)
    if whole.state == "none":  # the line names one part; a seed may fail in another one
        named = min((part for part in least.values() if part.reach is not None), key=_reach)
        said = [any(part.name == named.name and part.reach == 0 for part in parts) for parts in seeds]
    if len(set(reaches)) == 1 and all(said):
        return replace(whole, line=f"{whole.line} with each of {len(seeds)} seeds")
    each = " / ".join("unknown" if reach is None else f"{reach:,}" if reach else "none" for reach in reaches)
    who = "every seed" if all(said) else f"{sum(said)} of {len(seeds)} seeds"
    return replace(whole, line=f"{whole.line} with {who}; seeds: {each}")


def _reach(part: Part) -> tuple[float, bool]:
    """To find the least by. What fails at the shortest length is less than whatever is not known."""
    return 0.5 if part.reach is None else part.reach, part.open


def lengths(evaluation: Evaluation, asked: Asked) -> dict[str, float]:
    """For trackers, of one model: how far it reads under each variant [tokens], `reads/<variant>`, and of each part,
    `holds/<variant>`; what nobody can say is left out."""
    found: dict[str, float] = {}
    for row in evaluation.rows():
        parts = asked.get(row.name, ())
        known = {part.name: float(part.reach) for part in parts if part.reach is not None}
        found |= {f"{part.replace(' ', '_')}/{row.variant}": reach for part, reach in known.items()}
        if known and (len(known) == len(parts) or not min(known.values())):
            found[f"reads/{row.variant}"] = min(known.values())
    return found


def verdict(label: str, training_window: int, parts: Sequence[Part]) -> Verdict:
    """label: the model, with its variant where there are several. training_window [tokens]. parts: what was asked."""
    known = [part for part in parts if part.reach is not None]
    said = tuple((part.name, _words(part)) for part in parts)
    least = min(known, key=lambda part: (part.reach, part.open), default=None)
    if least is not None and least.reach == 0:
        return Verdict(label=label, line=_nowhere(least, training_window), parts=said, state="none")
    if least is None or len(known) < len(parts):
        return Verdict(label=label, line=_unknown(parts), parts=said, state="unknown")
    reach, beyond = least.reach or 0, f"; {_beyond(least)}" if _beyond(least) else ""
    line = f"reads to {_length(least)} tokens ({_times(reach, training_window)} its window{beyond})"
    return Verdict(label=label, line=line, parts=said, state="reads" if reach >= training_window else "partly")


def _length(part: Part) -> str:
    """[tokens] Where nothing that was judged failed, it may reach further, unless nobody can ask."""
    further = part.open and (part.missing or not part.stopped)
    return f"{'at least ' if further else ''}{part.reach:,}"


def _times(reach: int, training_window: int) -> str:
    times = reach / training_window
    return f"{times:.2g}×" if times < 99.5 else f"{times:,.0f}×"  # .2g would write 99.6 as 1e+02


def _words(part: Part) -> str:
    """Of one part: its length [tokens], or why there is none."""
    if part.reach is None:
        return f"unknown: {_lacking(part)}"
    if not part.reach:
        return f"not even {part.evidence[0].length:,}"
    return f"{_length(part)} ({_beyond(part)})" if _beyond(part) else _length(part)


def _beyond(part: Part) -> str:
    """Why the next length was not judged; "" when it was, or one before it failed, or none was asked."""
    return f"no verdict beyond: {_lacking(part)}" if part.open and (part.missing or part.stopped) else ""


def _lacking(part: Part) -> str:
    return f"{part.missing} of {LEAST} {part.of} missing" if part.missing else part.stopped


FAILS = {"uses": "gains nothing that is sure", "finds": "finds too little", "works with": "works with too little"}


def _nowhere(part: Part, training_window: int) -> str:
    """Of a part that fails at its shortest length: only what uses nothing inside its window reads nowhere."""
    shortest = part.evidence[0].length
    inside = shortest <= training_window
    if inside and part.name == "uses":
        return f"reads nowhere, not even inside its window of {training_window:,} tokens"
    return (
        f"reads to no length in all that was asked: {FAILS[part.name]} at {shortest:,} tokens already, "
        f"{'inside' if inside else 'beyond'} its window of {training_window:,}"
    )


def _unknown(parts: Sequence[Part]) -> str:
    short = max((part for part in parts if part.reach is None), key=lambda part: part.missing)
    return f"no verdict: {_lacking(short)}"
