"""The report of suite `passkey`: accuracy by length beside the paper's, by depth, and by the key's distance."""

from collections.abc import Sequence
from itertools import takewhile

from coca_train.evaluation.pages.cells import done, figure, not_measured, rows
from coca_train.evaluation.pages.passkey_places import by_depth, by_distance, by_length, by_window, share
from coca_train.evaluation.results import Cell, Evaluation, Measured
from coca_train.report import paper
from coca_train.report.blocks import Document, Row, Section, Table, Text, Value

DEFINITION = (
    "A prompt has the task, filler, a sentence with a key of five digits, filler, and the question; as many fillers "
    "as keep it within the length. The answer is greedy and comes on top; it is right when the key stands in it as a "
    "whole number. Depth is the share of the fillers before the key; distance is how far its sentence begins from the "
    "end of the prompt [tokens]. Dynamic frequencies see the length and the new tokens throughout. Intervals are "
    "Wilson's, 95 %."
)


def passkey_page(evaluation: Evaluation, n_depths: int) -> Document:
    sections = [
        Section(title="Accuracy by length", blocks=[by_length(evaluation), _accuracy_table(evaluation)]),
        Section(title="Where the key stands", blocks=by_depth(evaluation, n_depths)),
        Section(
            title="How far away the key is",
            blocks=[by_window(evaluation, True), by_window(evaluation, False), by_distance(evaluation)],
        ),
    ]
    sections += [*not_measured(evaluation), Section(title="Definition", blocks=[Text(text=DEFINITION)])]
    return Document(
        title=f"Passkey retrieval: {evaluation.name}",
        summary=_summary(evaluation),
        sections=sections,
        facts=[*evaluation.facts, ("cases", f"{evaluation.settings['n_cases']} at each length")],
        command=evaluation.command,
    )


def _accuracy_table(evaluation: Evaluation) -> Table:
    def values(subject: Measured, variant: str) -> tuple[Value, ...]:
        cells = [evaluation.find(subject.name, variant, point) for point in evaluation.points]
        return tuple(
            share(cell.result["cases"])
            if cell is not None and cell.status == "done"
            else figure(cell, lambda result: None)
            for cell in cells
        )

    return Table(
        name="passkey-accuracy",
        title="Share of passkeys found by length of the prompt [tokens]",
        label_columns=("model", "variant"),
        columns=tuple(f"{point:,}" for point in evaluation.points),
        rows=(*rows(evaluation, values), *_theirs(evaluation)),
        best="high",
        note="The paper's are of its own models, 100 cases each.",
    )


def _theirs(evaluation: Evaluation) -> tuple[Row, ...]:
    """The CoCA paper's figures at our lengths, where it has any."""
    lengths = [int(point) for point in evaluation.points]
    if not set(lengths) & set(paper.context()):
        return ()
    return tuple(
        row
        for name, series in (
            ("table 2", paper.table("table2_passkey")),
            ("table 3", _by_alpha()),
            ("table 4", paper.table("table4_pi")["passkey"]),
        )
        for row in paper.rows(series, lengths, label=lambda method, name=name: (paper.method(method), f"CoCA, {name}"))
    )


def _by_alpha() -> paper.Series:
    """Table 3: slack and strict CoCA with dynamic NTK of alpha 2, 4 and 8; strict is printed as a difference."""
    printed = paper.table("table3_slack_vs_strict")["passkey"]
    found: dict[str, Sequence[float]] = {}
    for alpha, slack in printed["slack"].items():
        more = printed["strict_minus_slack"][alpha]
        found[f"coca+dynamic_ntk+slack, alpha {alpha}"] = slack
        found[f"coca+dynamic_ntk+strict, alpha {alpha}"] = [round(a + b, 2) for a, b in zip(slack, more, strict=True)]
    return found


def _summary(evaluation: Evaluation) -> list[str]:
    """How far each model reaches, and under which variants."""
    said = []
    for subject in evaluation.subjects:
        measured = {}
        for variant in subject.variants:
            cells = [(int(point), cell) for point, cell in done(evaluation, subject, variant)]
            measured |= {variant: cells} if cells else {}
        if not measured:
            continue
        reach = {variant: _reach(cells) for variant, cells in measured.items()}
        farthest = max(reach.values())
        if farthest:
            under = _under([variant for variant, n in reach.items() if n == farthest], len(subject.variants))
            said.append(
                f"{subject.name} finds at least nine of ten passkeys in prompts of up to {farthest:,} tokens{under}; "
                f"its training window is {subject.training_window:,}."
            )
        else:
            every = [
                (cell.result["accuracy"], -point, variant)
                for variant, cells in measured.items()
                for point, cell in cells
            ]
            best, point, _ = max(every)
            under = _under([v for found, n, v in every if (found, n) == (best, point)], len(subject.variants))
            said.append(f"{subject.name} finds {best:.0%} at best, in prompts of {-point:,} tokens{under}.")
    return said


def _reach(cells: Sequence[tuple[int, Cell]]) -> int:
    """The longest prompt [tokens] up to which nine of ten are found; 0: not in the shortest."""
    reached = [point for point, _ in takewhile(lambda pair: pair[1].result["accuracy"] >= 0.9, cells)]
    return reached[-1] if reached else 0


def _under(variants: Sequence[str], n_variants: int) -> str:
    if n_variants == 1:
        return ""
    return ", whatever the variant" if len(variants) == n_variants else f" ({', '.join(variants)})"
