"""Tasks of lm-evaluation-harness, and your own task files of its form (measures/harness.py).

A point is the name of a task, or of a group of tasks.
"""

import hashlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypedDict

from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation import harness_page
from coca_train.evaluation.harness_page import Metric, Result, Task, by_document, main_metric, metric_name
from coca_train.evaluation.measures.harness_text import FolderText, OwnText, TaskText
from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.results import Evaluation, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suite import CellSuite
from coca_train.report.blocks import Document
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError
from coca_train.runtime.untrusted_io import JsonObject

if TYPE_CHECKING:
    from coca_train.evaluation.measures.harness import Adapter, LoadedTask

Shots = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Tasks and how they are asked."""

    suite: Literal["harness"]
    tasks: list[str] = Field(min_length=1, description="names of tasks or groups of lm-evaluation-harness, or your own")
    include_path: str | None = Field(description="folder with task files of your own; null = none")
    metadata: JsonObject = Field(
        description="what is passed to tasks that make or choose their texts by length: {max_seq_lengths: [4096, "
        "8192]} for ruler, {max_seq_lengths: 4k} for babilong"
    )
    num_fewshot: Shots | dict[str, Shots] | None = Field(
        description="examples before each question: one number, or one a task, such as {arc_challenge: 25, mmlu: 5}; "
        "null, and for tasks it does not name = as each task says"
    )
    limit: Positive | None = Field(description="documents asked of each task; null = all of them")
    window: Positive | Literal["whole", "training"] = Field(
        description="tokens read at once; what is longer loses its left, and the report counts it [tokens]. whole: "
        "everything is read as it is asked, however long; training: the training window"
    )
    seed: Annotated[list[Seed], Field(min_length=4, max_length=4)] = Field(
        description="as lm_eval --seed: of Python's, NumPy's and torch's generators while a task is loaded, and of the "
        "draw of its few-shot examples; lm_eval's own are [0, 1234, 1234, 1234]"
    )

    @field_validator("num_fewshot")
    @classmethod
    def _of_tasks(cls, shots: object, info: ValidationInfo) -> object:
        tasks = info.data.get("tasks", ())
        if isinstance(shots, dict) and (others := [name for name in shots if name not in tasks]):
            raise ValueError(f"eval.tasks has no {', '.join(others)}; it has {', '.join(tasks)}")
        return shots

    def shots(self, task: str) -> int | None:
        return self.num_fewshot.get(task) if isinstance(self.num_fewshot, dict) else self.num_fewshot


class Material(NamedTuple):
    """problems: by point, why a task cannot be asked. longest: positions that a task's longest request takes [tokens],
    where a model has an end. tokenizer: its digest, and how texts become tokens."""

    tasks: "Mapping[Point, LoadedTask]"
    problems: Mapping[Point, str]
    longest: Mapping[Point, int]
    adapter: "Adapter"
    tokenizer: str


class Part(TypedDict):
    """Of one rank."""

    answers: JsonObject
    n_clipped: int
    n_requests: int


class Evaluator(CellSuite[Settings, Material, Part, Result]):
    """Tasks of lm-evaluation-harness."""

    VERSION = 3
    AXIS = ("tasks", "metadata")

    def options(self, point: Point) -> dict[str, object]:
        """Return the options, of shots by task its own: those of another task leave it what it is, and one number for
        all is the same. What made its texts is no part of it, as they are; nor is the window's word, as the fingerprint
        has it."""
        window = None if self.settings.window in ("whole", "training") else self.settings.window
        return super().options(point) | {"window": window, "num_fewshot": self.settings.shots(str(point))}

    def points(self, lengths: Sequence[int]) -> tuple[Point, ...]:
        return tuple(dict.fromkeys(self.settings.tasks))

    def prepare(self, subject: Subject, setup: Setup) -> Material:
        """Load the tasks. COLLECTIVE. Rank 0 loads first, so that a data set is fetched once; a task lost on one rank
        is lost on all."""
        harness, options = _harness(), self.settings
        window = {"whole": None, "training": subject.training_window}.get(str(options.window), options.window)
        seeds = harness.Seeds(*options.seed)
        text: TaskText = OwnText(subject.tokenizer, subject.begin)
        if subject.facts.kind == "huggingface":
            text = FolderText(subject.path, {"auto": None, "bos": True, "none": False}[subject.begin_choice])
        adapter = harness.Adapter(subject.model, text, harness.Reading(window, setup.micro_batch_tokens))
        tasks: dict[Point, LoadedTask] = {}
        problems: dict[Point, str] = {}
        longest: dict[Point, int] = {}

        def load() -> None:
            known = harness.find_tasks(options.tasks, options.include_path, text, options.metadata)
            for name in options.tasks:
                try:
                    tasks[name] = harness.load_task(known, name, options.shots(name), options.limit, seeds)
                    problems[name] = harness.explain_too_long(adapter, tasks[name].requests)
                    if subject.model.max_positions is not None:  # all texts become tokens for it
                        longest[name] = harness.longest_request(adapter, tasks[name].requests)
                except ValueError as error:
                    problems[name] = str(error)

        # Rank 0 alone first: it fetches what is not on the disk yet, the others then find it there.
        dist.broadcast_from_rank0(load)
        if not dist.is_main():
            load()
        everywhere = dist.all_gather_object(problems)
        merged: dict[Point, str] = {
            name: next((each[name] for each in everywhere if each[name]), "") for name in options.tasks
        }
        return Material(tasks, merged, longest, adapter, f"{subject.tokenizer.digest} {text.identity}")

    def work(self, subject: Subject, points: Sequence[Point], material: Material) -> list[float]:
        """Estimate the work [characters of all requests]."""
        texts = [[text for r in material.tasks[point].requests for text in r.args] for point in points]
        return [float(sum(len(text) for text in each if isinstance(text, str))) for each in texts]

    def fingerprint(self, material: Material, point: Point) -> str:
        """Digest every request, the tokenizer, how requests are read, and the harness that counts."""
        harness = _harness()
        known = [material.tokenizer, repr(material.adapter.reading), harness.VERSION]
        if point in material.tasks:
            task = material.tasks[point]
            known += [f"{task.limit} {task.seeds}", *map(harness.request_key, task.requests), harness.definition(task)]
        return hashlib.sha256("\n".join(known).encode()).hexdigest()

    def impossible(self, subject: Subject, point: Point, material: Material) -> str:
        if material.problems[point] or point not in material.longest:
            return material.problems[point]
        taken = material.longest[point]
        lacking = missing_positions(subject.model, taken)
        return lacking and f"{lacking}, and what is asked takes {taken:,}"

    def measure(self, subject: Subject, point: Point, material: Material, setup: Setup) -> dict[str, Part]:
        harness = _harness()
        mine = harness.share(material.tasks[point].requests, dist.rank(), dist.world_size())
        adapter, done = material.adapter, 0

        def progress(n_requests: int) -> None:
            nonlocal done
            done += n_requests
            setup.progress(min(1.0, done / len(mine)))

        adapter.n_clipped, adapter.progress = 0, progress
        answers = harness.answer(adapter, mine)
        return {f"{dist.rank()}": {"answers": answers, "n_clipped": adapter.n_clipped, "n_requests": len(mine)}}

    def combine(self, point: Point, material: Material, parts: Mapping[str, Part]) -> Result:
        answers = {key: answer for part in parts.values() for key, answer in part["answers"].items()}
        task = material.tasks[point]
        n_requests, n_clipped = (sum(part[key] for part in parts.values()) for key in ("n_requests", "n_clipped"))
        return summary(_harness().score(task, answers), list(task.tree["tasks"]), str(point), n_requests, n_clipped)

    def page(self, evaluation: Evaluation[Result]) -> Document:
        return harness_page.page(evaluation)


def _harness() -> ModuleType:
    """Import the adapter on first use: lm_eval is an extra, and takes seconds to import."""
    try:
        from coca_train.evaluation.measures import harness
    except ImportError as error:
        if (error.name or "").split(".")[0] == __name__.split(".")[0]:
            raise  # of ours, not theirs
        raise UserError(
            f"E-EVAL-30 eval.suite=harness: lm_eval cannot be imported ({error}); it is part of the extra 'harness'. "
            "Fix: pip install 'coca-train[harness]'"
        ) from error
    return harness


def summary(results: JsonObject, tasks: Sequence[str], name: str, n_requests: int = 0, n_clipped: int = 0) -> Result:
    """Return what is kept of the results of harness.score, without what was not measured.

    tasks: those with documents of their own. name: what was evaluated, a task or a group of them.
    """
    metrics = {
        each: _metrics(values, results["higher_is_better"].get(each, {})) for each, values in results["results"].items()
    }
    logged, counts, documents = results.get("samples", {}), dict[str, Task](), {}
    for each in tasks:
        n = results["n-samples"][each]
        counts[each] = {
            "version": str(results["versions"][each]),
            "num_fewshot": results["n-shot"][each],
            "original": n["original"],
            "effective": n["effective"],
        }
        figures = {name: metric["value"] for name, metric in metrics[each].items()}
        documents[each] = by_document(logged.get(each, ()), figures)
    own = metrics.get(name, {})
    main = main_metric(own)
    return {
        "main": None if main is None else own[main],
        "metrics": metrics,
        "documents": documents,
        "tasks": counts,
        "n_requests": n_requests,
        "n_clipped": n_clipped,
    }


def _metrics(values: JsonObject, higher_is_better: JsonObject) -> dict[str, Metric]:
    """Return the metrics of one task: the keys of `values` are `acc,none`, metric and filter, and `acc_stderr,none`."""
    metrics = dict[str, Metric]()
    for key, value in values.items():
        metric, _, chosen = key.partition(",")
        if not chosen or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        if metric.isdigit() and value == -1:  # RULER's metrics are lengths, and -1 is one without a prompt
            continue
        error = values.get(f"{metric}_stderr,{chosen}")
        metrics[metric_name(metric, chosen)] = {
            "metric": metric,
            "value": float(value),
            "stderr": float(error) if isinstance(error, int | float) else None,
            "higher_is_better": higher_is_better.get(metric),
        }
    return metrics
