"""The page of the atlas: ranks, the matrix of methods and tasks, curves, and what separates methods."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from coca_train.atlas.claims import CLAIMS, tried
from coca_train.atlas.groups import far_and_near, of_reader, reader_title
from coca_train.atlas.learning import first_losses, losses_by_step
from coca_train.atlas.matrix import SHARE, Matrix
from coca_train.atlas.methods import REFERENCE, title_of
from coca_train.atlas.sentences import by_task, finding
from coca_train.atlas.trials import GUESSED, LEARNED, Trial
from coca_train.atlas.window_reader import share
from coca_train.data.diagnostics import TASKS
from coca_train.report.blocks import Document, HeatMap, HeatMaps, Line, Lines, Row, Section, Table, Text, Value
from coca_train.statistics.answers import WRONG
from coca_train.statistics.intervals import Bounds
from coca_train.statistics.moderated import MARGIN
from coca_train.statistics.ranks import Ranked, TaskDifference, rank

SHOWN, N_BEST = ("rope", "coca", "alibi", "nope"), 4  # of the curves of a task: these and the best are shown at once
JUDGED = "All rows of a task are judged together, so fewer differences are significant here than in a claim about two."
DEFINITION = (
    f"A task is learned by a training when at least {LEARNED:.0%} of its answers are right at the trained length; one "
    "that is not learned has no score. The score of a task is the mean over the longer lengths of the share of right "
    "answers, scaled so that guessing is 0 and all right is 1; below 0 it is worse than guessing. A task in which "
    f"guessing has more than {GUESSED:.0%} right at one of these lengths has none. A row has a score in a task that "
    "half of its seeds or more have learned. The score of a row is its least-squares mean over the tasks that any row "
    "has (method plus task), so that a method that has learned only the easy ones is no better for it; a row with no "
    "more than half of them has none. All of it is of the rows of this page, so that a row that comes may "
    "change the figures of others. Differences have 95 % intervals of a moderated t (Smyth 2004): the "
    f"variance of all pairs of rows, times {MARGIN:g}, is the prior of each, with no more degrees of freedom than the "
    "pair has itself. The scores of the map have a prior of all its squares, curves and losses Student's intervals. "
    "The range of a rank counts the rows that are significantly better and worse on these tasks, with a familywise "
    "error of 5 % over the comparisons with all other rows (Holm): two rows differ significantly where they do among "
    "all comparisons of the one and among all of the other. What is said of a task has an error of 5 % over all rows "
    "of the task."
)


def page(
    trials: Sequence[Trial],
    rates: Sequence[float],
    command: str,
    own: Sequence[str] = (),
    reference: str = REFERENCE,
) -> Document:
    """Return the page of trials of one protocol. rates: those that its sweeps try. own: rows that its reader asked for.
    reference: the row that others are compared with."""
    matrix = Matrix({(trial.row, trial.seed): trial for trial in trials}, reference)
    ranked = dict(zip(matrix.rows, rank(matrix.scores_MSK, matrix.priors), strict=True))
    order = sorted(matrix.rows, key=lambda row: (ranked[row].rank, -_learned(matrix, row)))
    learned = {task: any(matrix.n_learned(row, task)[0] for row in order) for task in matrix.tasks}
    claims = _claims(matrix)
    ranks = _ranks(matrix, ranked, order)
    return Document(
        title=f"Atlas: {_counted(len(matrix.rows), 'position method')} from "
        f"{_counted(len(matrix.trained), 'trained model')}, {_counted(len(matrix.tasks), 'task')}, up to "
        f"{_counted(len(matrix.seeds), 'seed')}",
        finding=finding(matrix, ranked, order),
        summary=[_placed(row, ranks, ranked, matrix) for row in own if row in matrix.rows],
        sections=[
            Section(title="Ranks", blocks=[ranks, far_and_near(matrix, order), _models(matrix, rates)]),
            Section(
                title="What separates them",
                blocks=[Text(text="\n".join(f"* {each}" for each in by_task(matrix))), Text(text=JUDGED)],
            ),
            *([Section(title="What papers claim", blocks=[claims])] if claims is not None else ()),
            *(
                [Section(title="How soon they learn", blocks=[losses_by_step(matrix), first_losses(matrix)])]
                if matrix.steps and matrix.trained
                else ()
            ),
            Section(title="How far each task still works", blocks=[_reach(matrix, order), _map(matrix, order)]),
            Section(
                title="Curves", blocks=[_curves(matrix, task, order, own) for task in matrix.tasks if learned[task]]
            ),
            Section(title="Rows", blocks=[Text(text="\n".join(_settings(matrix)))], folded=True),
            Section(title="Tasks", blocks=[Text(text="\n".join(_tasks(matrix)))], folded=True),
            Section(title="Definition", blocks=[Text(text=DEFINITION)], folded=True),
        ],
        facts=_facts(matrix),
        command=command,
    )


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _learned(matrix: Matrix, row: str) -> float:
    """Return the mean number of tasks that a training of a row has learned."""
    return float(np.mean([sum(map(trial.has_learned, trial.tasks)) for trial in matrix.of(row)]))


def _claims(matrix: Matrix) -> Table | None:
    """Return the claims of papers that these rows can tell of; None where they tell of none, or have one seed."""
    found = tried(dict(zip(matrix.rows, matrix.scores_MSK, strict=True)), matrix.tasks)
    if not found or len(matrix.seeds) < 2:
        return None

    def named(tasks: Sequence[str]) -> Value:
        return Value(", ".join(tasks) or "–", float(len(tasks)))

    def difference(bounds: Bounds, missing: str) -> Value:
        if math.isnan(bounds.estimate):
            return Value.of(None, missing="no task is learned by both")
        if not math.isfinite(bounds.low):
            return Value.of(bounds.estimate, "{:+.2f}", n=bounds.n, note=missing)
        return Value.of(bounds.estimate, "{:+.2f}", n=bounds.n, low=bounds.low, high=bounds.high)

    rows = [
        Row(
            label=(each.claim.words, each.claim.source),
            values=(
                Value(each.verdict),
                difference(each.on_these, "one seed has no interval"),
                difference(each.bounds, "one task, or one seed, has no interval"),
                named(each.better),
                named(each.worse),
            ),
        )
        for each in found
    ]
    waiting = [claim.words for claim in CLAIMS if claim not in {each.claim for each in found}]
    return Table(
        name="claims",
        title="Claims of papers, tried at this size",
        label_columns=("claim", "paper"),
        columns=("verdict", "Δ", "Δ, tasks as a sample", "better in", "worse in"),
        rows=tuple(rows),
        interval=f"interval, all {len(CLAIMS)} claims judged together",
        note="Δ: of the scores, over the tasks that every seed has learned, with an interval over seeds; tasks as "
        "a sample: over those that half of the seeds have learned, with an interval over tasks and seeds. Of several α "
        "the mean. Better, worse: tasks with a significant "
        "difference, all tasks of a claim judged together. Rows differ in their learning rates, too."
        + (f" Not tried, for want of a row: {'; '.join(waiting)}." if waiting else ""),
    )


def _ranks(matrix: Matrix, ranked: Mapping[str, Ranked], order: Sequence[str]) -> Table:
    apart = _against(matrix)

    def row_of(row: str) -> Row:
        found = ranked[row]
        level = found.level if math.isfinite(found.level) else None
        missing = "no more than half of the tasks are learned"
        place, ends = None if level is None else found.rank, found.on_these
        return Row(
            label=(title_of(row),),
            values=(
                Value.of(place, "{:.0f}", missing=missing, low=ends.best, high=ends.worst),
                Value.of(level, "{:.2f}", missing=missing),
                *apart[row],
                Value.of(_works_in_window(matrix, row), "{:.1f}"),
                Value.of(float(len(list(matrix.of(row)))), "{:.0f}"),
            ),
        )

    at = matrix.lengths[0]
    reference = title_of(matrix.reference)
    learned = [task for task in matrix.scored if _is_learned_by_all(matrix, matrix.reference, task)]
    return Table(
        name="ranks",
        title=f"Mean score from {matrix.lengths[1]:,} to {matrix.lengths[-1]:,} tokens, after training at {at}",
        label_columns=("method",),
        columns=(
            *("rank", "score", f"Δ to {reference}", "tasks of Δ", "Δ without one task", "Δ, tasks as a sample"),
            *(f"tasks at {at} tokens", "seeds"),
        ),
        rows=tuple(map(row_of, order)),
        interval="range of a rank; interval of a Δ, all rows judged together",
        note="Score: 0 for guessing, 1 for all answers right. "
        f"Δ to {reference}: over the tasks with a score that every seed of both has learned ({reference}: "
        f"{', '.join(learned) or 'none'}), with an interval over seeds. Tasks of Δ: how many they are; rows with other "
        "tasks are compared over other ones, so that ranges and the order of scores can disagree. Without one task: "
        "the Δ nearest to zero, or beyond it, when that task is left out. Tasks as a sample: over those that half of "
        "the seeds have learned, as a sample of such tasks, with an interval over tasks and seeds. Tasks at "
        f"{at} tokens: of those that the weights have learned, in how many this row has at least {LEARNED:.0%} right "
        "at the trained length, the mean over seeds.",
    )


def _placed(row: str, ranks: Table, ranked: Mapping[str, Ranked], matrix: Matrix) -> str:
    """Return in a sentence where a row is among the others, and which are significantly better."""
    if not math.isfinite(ranked[row].level):
        return f"{title_of(row)}: no rank, as no more than half of the tasks are learned."
    place, score, apart, *_ = next(each.values for each in ranks.rows if each.label == (title_of(row),))
    said = f"{title_of(row)}: rank {_with_range(place)} of {len(ranks.rows)}, score {score.text}"
    if row != matrix.reference:
        said += f", {ranks.columns[2]} {_with_range(apart)}"
    said += f", learning rate {next(matrix.of(row)).rate:g}."
    above = [title_of(matrix.rows[m]) for m in sorted(ranked[row].above, key=lambda m: ranked[matrix.rows[m]].rank)]
    return f"{said} Significantly better: {', '.join(above) or 'none'}."


def _with_range(value: Value) -> str:
    return f"{value.text} ({value.range})" if value.range else value.text


def _is_learned_by_all(matrix: Matrix, row: str, task: str) -> bool:
    n, of = matrix.n_learned(row, task)
    return n == of > 0


def _works_in_window(matrix: Matrix, row: str) -> float:
    """Return in how many tasks of those learned a row is still right at the trained length, the mean over seeds."""
    return statistics.fmean(
        sum(trial.works_to(task) >= matrix.lengths[0] for task in trial.learned) for trial in matrix.of(row)
    )


def _models(matrix: Matrix, rates: Sequence[float]) -> Table:
    def row_of(row: str) -> Row:
        trials = list(matrix.of(row))
        is_end = len(set(rates)) > 1 and trials[0].rate in (min(rates), max(rates))
        return Row(
            label=(title_of(row),),
            values=(
                Value.of(float(len(trials)), "{:.0f}"),
                Value.of(_learned(matrix, row), "{:.1f}"),
                Value.of(trials[0].rate, "{:g}", note="an end of what the sweep tried" if is_end else ""),
                Value.of(float(trials[0].n_parameters), "{:,.0f}"),
                _step_time(matrix, row),
            ),
        )

    return Table(
        name="models",
        title="Trained models",
        label_columns=("method",),
        columns=("seeds", "tasks learned", "learning rate", "parameters", "step time"),
        rows=tuple(map(row_of, matrix.trained)),
        note=f"Tasks learned: at least {LEARNED:.0%} right at {matrix.lengths[0]} tokens, the mean over seeds. "
        "Learning rate: the best of the sweep, times the experiment's. Step time: of a training step, of "
        f"{title_of(matrix.reference)}'s on the same processor, by the fastest tenth of its steps, while other work "
        "was on the machine: differences below 5 % are noise.",
    )


def _step_time(matrix: Matrix, row: str) -> Value:
    """Return the time of a training step of a row as a multiple of the reference's on the same processor, the median
    over its seeds."""
    references = defaultdict[str, list[float]](list)
    for trial in matrix.of(matrix.reference):
        references[trial.processor].append(trial.tokens_per_s)
    ratios = [
        statistics.median(references[trial.processor]) / trial.tokens_per_s
        for trial in matrix.of(row)
        if trial.tokens_per_s and trial.processor in references
    ]
    missing = f"no training of {title_of(matrix.reference)} on its processor"
    return Value.of(statistics.median(ratios) if ratios else None, "{:.2f}×", missing=missing)


def _against(matrix: Matrix) -> dict[str, tuple[Value, ...]]:
    """Return by row the difference to the reference on these tasks, how many they are, what is left without one of
    them, and the difference over tasks and seeds; of each all rows are judged together."""
    if matrix.reference not in matrix.rows:
        absent = Value.of(None, missing=f"{title_of(matrix.reference)} is missing")
        return dict.fromkeys(matrix.rows, (absent,) * 4)
    scores = dict(zip(matrix.rows, matrix.scores_MSK, strict=True))
    confidence = 1 - WRONG / max(1, len(matrix.rows) - 1)
    itself = Value.of(None, missing="itself")
    found = {matrix.reference: (itself,) * 4}
    for row in (row for row in matrix.rows if row != matrix.reference):
        difference = TaskDifference(scores[row], scores[matrix.reference], matrix.priors)
        over_tasks, on_these = difference.interval(confidence), difference.on_these_tasks(confidence)
        few = "fewer than two seeds, or two tasks that both have learned"
        seeds = "fewer than two seeds, or no task that every seed has learned"
        n_tasks = float(difference.shared_K.sum()) if math.isfinite(on_these.low) else None
        found[row] = (
            _difference(on_these, seeds),
            Value.of(n_tasks, "{:.0f}", missing=seeds),
            _without_one(difference, on_these.estimate, matrix.tasks),
            _difference(over_tasks, few),
        )
    return found


def _difference(bounds: Bounds, missing: str) -> Value:
    """Return a difference where it has an interval. missing: why it may have none."""
    estimate = bounds.estimate if math.isfinite(bounds.low) else None
    return Value.of(estimate, "{:+.2f}", missing=missing, low=bounds.low, high=bounds.high, n=bounds.n)


def _without_one(difference: TaskDifference, whole: float, tasks: Sequence[str]) -> Value:
    left = difference.without_one_task()
    if not left:
        return Value.of(None, missing="fewer than two tasks that every seed has learned")
    k = min(left, key=lambda k: math.copysign(1, whole) * left[k])
    return Value(f"{left[k]:+.2f} ({tasks[k]})", left[k])


def _settings(matrix: Matrix) -> list[str]:
    """Return the options of each row, as its trials name them: of a training, or of an evaluation of its weights."""
    settings = {row: next(matrix.of(row)) for row in matrix.rows}
    return [
        f"* {title_of(row)}, `{row}`: `{' '.join(trial.words if trial.method == row else trial.words[-1:])}`"
        for row, trial in settings.items()
    ]


def _reach(matrix: Matrix, order: Sequence[str]) -> Table:
    def cell(row: str, task: str) -> Value:
        n, of = matrix.n_learned(row, task)
        if not n:
            return Value.of(None, missing="not learned")
        each = sorted(trial.works_to(task) for trial in matrix.of(row) if trial.has_learned(task))
        middle = matrix.works_to(row, task)
        spread = f"{each[0]:,} to {each[-1]:,}" if each[0] != each[-1] else ""
        note = f"learned by {n} of {of}" if n < of else ""
        return Value(f"{middle:,}", float(middle), note=note, range=spread)

    return Table(
        name="reach",
        title=f"Longest length at which {LEARNED:.0%} of the answers are right [tokens]",
        label_columns=("method",),
        columns=tuple(matrix.tasks),
        rows=tuple(
            Row(label=(title_of(row),), values=tuple(cell(row, task) for task in matrix.tasks)) for row in order
        ),
        interval="lowest and highest seed",
        note=f"The median of the seeds that have learned the task at {matrix.lengths[0]} tokens. A dash: not learned.",
    )


def _map(matrix: Matrix, order: Sequence[str]) -> HeatMaps:
    index = {row: number for number, row in enumerate(matrix.rows)}
    bounds = [matrix.cells[index[row]] for row in order]
    return HeatMaps(
        name="scores",
        title="Score beyond the training window",
        alt="A square for each method and task: the mean score of the seeds that have learned it.",
        x_label="task",
        y_label="method",
        panels=(
            HeatMap(
                title="",
                x_names=tuple(matrix.tasks),
                y_names=(reader_title(matrix), *map(title_of, order)),
                values=(
                    tuple(of_reader(matrix, [task]) if task in matrix.scored else None for task in matrix.tasks),
                    *(tuple(each.estimate if each.n else None for each in row) for row in bounds),
                ),
                doubtful=frozenset(
                    (1 + i, j) for i, row in enumerate(bounds) for j, each in enumerate(row) if not each.low > 0
                ),
            ),
        ),
        low=0.0,
        high=1.0,
        note="0 for guessing, 1 for every answer at every longer length; a dash: no score, or learned by fewer than "
        "half of the seeds. Coloured, and without a question mark, where its 95 % interval over seeds is above 0.",
    )


def _curves(matrix: Matrix, task: str, order: Sequence[str], own: Sequence[str]) -> Lines:
    learned = [row for row in order if matrix.n_learned(row, task)[0]]
    beyond = {row: sum(matrix.share(row, task, at).number or 0.0 for at in matrix.lengths[1:]) for row in learned}
    best = sorted(learned, key=lambda row: -beyond[row])
    shown = dict.fromkeys((*(row for row in (*own, *SHOWN) if row in learned), *best[:N_BEST]))

    def line(row: str) -> Line:
        return Line.of_values(title_of(row), [(length, matrix.share(row, task, length)) for length in matrix.lengths])

    window = matrix.lengths[0]
    shares = [(length, Value.of(share(task, length, window), SHARE)) for length in matrix.lengths]
    reader = [Line.of_values(reader_title(matrix), shares)] if task in matrix.scored else []
    return Lines(
        name=f"curve-{task.replace('_', '-')}",
        title=f"{task}: {TASKS[task].meaning}",
        alt="The share of right answers against the length, a curve for each method that has learned the task.",
        x_label="length [tokens]",
        y_label="share of right answers",
        lines=(*map(line, shown), *reader, *(line(row) for row in best if row not in shown)),
        n_shown=len(shown) + len(reader),
        x_log=True,
        y_limits=(0.0, 1.0),
        marks=((float(matrix.lengths[0]), "trained"),),
        interval="95 % interval over seeds",
    )


def _tasks(matrix: Matrix) -> Iterator[str]:
    for task in matrix.tasks:
        chances = matrix.chances(task)
        ends = " and ".join(
            f"{chance:.1%} at {length:,} tokens"
            for length, chance in list(zip(matrix.lengths, chances, strict=False))[:: max(1, len(chances) - 1)]
        )
        score = "" if task in matrix.scored else " No score."
        yield f"* {task}: {TASKS[task].meaning} By {TASKS[task].guess}: {ends}.{score}"


def _facts(matrix: Matrix) -> list[tuple[str, str]]:
    trials = list(matrix.trials.values())
    hours = sum({(trial.method, trial.seed): trial.seconds for trial in trials}.values()) / 3600
    torch = sorted({trial.made_with.get("torch", "?") for trial in trials})
    processors = sorted({trial.processor for trial in trials})
    return [
        ("protocol", trials[0].protocol),
        (
            "trainings",
            f"{len({(trial.method, trial.seed) for trial in trials})}, {hours:.1f} core-hours, without the sweeps of "
            "learning rates and the evaluations",
        ),
        ("made with", f"torch {', '.join(torch)} on {', '.join(processors)}"),
    ]
