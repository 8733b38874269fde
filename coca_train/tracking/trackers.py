"""Trackers: sinks for people who watch many runs at once, TensorBoard and Weights & Biases.

In addition to the records of the steps they get the run's hyper-parameters when it begins, and when a report is written
its figures as images, its page, its sample and verdicts as text, and how far the model reads as numbers. Tags are in
the same groups in both: train/, valid/, reach/ (probes and verdicts) and report/.
"""

import queue
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml

from coca_train.runtime import dist, untrusted_io
from coca_train.runtime.threads import Thread
from coca_train.runtime.trees import flatten

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Record = Mapping[str, object]
Warn = Callable[[str], None]
# Settings by which runs are compared even where they are the defaults.
COMPARED = (
    "position.scheme",
    "position.rope_scaling.name",
    "attention_pattern.name",
    "train.seq_len",
    "optim.lr",
    "run.seed",
)


class Findings(NamedTuple):
    """The findings of a report. stage: its subject, "" for the run's last. figures: PNG files by name. texts, numbers:
    by name, whose parts are separated by "/". page: the report, a whole HTML file."""

    stage: str
    figures: Mapping[str, Path]
    texts: Mapping[str, str]
    numbers: Mapping[str, float]
    page: Path | None = None

    def tag(self, group: str, name: str) -> str:
        """Return reach/reads/plain, of a stage reach/<stage>/reads/plain."""
        return "/".join(part for part in (group, self.stage, name) if part)

    def numbers_by_tag(self) -> dict[str, float]:
        return {self.tag("reach", name): number for name, number in self.numbers.items()}

    def texts_by_tag(self) -> dict[str, str]:
        return {self.tag("report", name): text for name, text in self.texts.items()}

    def figures_by_tag(self) -> dict[str, Path]:
        return {self.tag("report", name): path for name, path in self.figures.items()}


class HyperParameters(NamedTuple):
    """A run's settings, nested, and those of a run without any options."""

    settings: Record
    defaults: Record

    @property
    def changed(self) -> dict[str, object]:
        """The settings that differ from the defaults, by their full names."""
        defaults = flatten(self.defaults)
        return {
            key: value for key, value in flatten(self.settings).items() if key not in defaults or defaults[key] != value
        }


def scalars(record: Record) -> dict[str, float]:
    """Return the numbers of a record by tag; those of neither a validation nor a probe belong to the training."""
    tags: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, int | float):
            group, _, name = key.partition("/")
            tags[{"valid": key, "probe": f"reach/{name}"}.get(group, f"train/{key}")] = value
    return tags


def as_code(text: str) -> str:
    """Return a text as Markdown that shows its lines unchanged."""
    return "".join(f"    {line}\n" for line in text.splitlines())


class Sink(ABC):
    """A destination of the records of a run."""

    @abstractmethod
    def write(self, step: int, record: Record) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Tracker(Sink):
    """A sink that also takes the findings of a report."""

    @abstractmethod
    def show(self, step: int, findings: Findings) -> None: ...


class TensorBoardSink(Tracker):
    """TensorBoard events in <run>/tensorboard, one run there; events beyond start_step are purged on resume.

    Settings and findings have event files of their own, whose names end in `.config`, `.report` and `.report-<stage>`
    and which are replaced: a resumed run says nothing twice.
    """

    def __init__(self, directory: Path, start_step: int, hyper_parameters: HyperParameters) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._directory, self._hyper_parameters = directory, hyper_parameters
        begun = any(directory.glob("events.*"))
        with self._replace_events("config") as writer:
            for tag, values in (("config", hyper_parameters.settings), ("changed", hyper_parameters.changed)):
                writer.add_text(f"config/{tag}", as_code(yaml.safe_dump(dict(values), sort_keys=False)), 0)
        # Purges from the first step too: a run that was killed before its first save starts over in the same folder.
        self._writer = SummaryWriter(str(directory), purge_step=start_step + 1 if begun else None)

    @contextmanager
    def _replace_events(self, name: str) -> Iterator["SummaryWriter"]:
        """Yield the writer of an event file that replaces an earlier one."""
        from torch.utils.tensorboard import SummaryWriter

        for earlier in self._directory.glob(f"events.*.{name}"):
            earlier.unlink()
        with SummaryWriter(str(self._directory), filename_suffix=f".{name}") as writer:
            yield writer

    def write(self, step: int, record: Record) -> None:
        for tag, value in scalars(record).items():
            self._writer.add_scalar(tag, value, step)

    def show(self, step: int, findings: Findings) -> None:
        import numpy as np
        from PIL import Image  # matplotlib's, which drew them

        self._writer.close()  # the next record opens another file: TensorBoard watches the newest one of a run
        with self._replace_events(f"report-{findings.stage}" if findings.stage else "report") as writer:
            for tag, path in findings.figures_by_tag().items():
                with Image.open(path) as image:
                    writer.add_image(tag, np.asarray(image.convert("RGB")), step, dataformats="HWC")
            for tag, text in findings.texts_by_tag().items():
                writer.add_text(tag, as_code(text), step)
            for tag, number in findings.numbers_by_tag().items():
                writer.add_scalar(tag, number, step)
            if not findings.stage:
                self._add_to_run_table(writer, findings.numbers_by_tag())

    def _add_to_run_table(self, writer: "SummaryWriter", reach: Mapping[str, float]) -> None:
        """Add a line to the table in which runs are compared: the settings that differ from the defaults, and COMPARED.
        TensorBoard orders them by name, so that among all settings the few that matter would be lost."""
        from torch.utils.tensorboard.summary import hparams

        every = flatten(self._hyper_parameters.settings)
        settings = self._hyper_parameters.changed | {key: every[key] for key in COMPARED if key in every}
        plain = {key: value for key, value in settings.items() if isinstance(value, bool | int | float | str)}
        # Not add_hparams, which makes a run of its own for them.
        for summary in hparams(plain, dict(reach)):
            assert writer.file_writer is not None
            writer.file_writer.add_summary(summary)

    def close(self) -> None:
        self._writer.close()


class WandbSink(Tracker):
    """Weights & Biases, on a thread of its own with a bounded queue: training never waits for it.

    config: what is uploaded, chosen by the caller (no paths, no secrets). Findings are images and a page of the last
    step, and the run's summary, where each appears once. When the queue is full records are dropped; after a failure
    wandb stays silent. close() waits at most close_s seconds.
    """

    def __init__(
        self, run_dir: Path, mode: str, project: str, name: str, config: Record, warn: Warn, close_s: float = 30.0
    ) -> None:
        self._warn, self._close_s = warn, close_s
        self._queue: queue.Queue[tuple[int, Record | Findings] | None] = queue.Queue(maxsize=1000)
        options = {"dir": str(run_dir), "mode": mode, "project": project, "name": name, "config": dict(config)}
        options |= {"id": _run_id(run_dir), "resume": "allow"}
        self._thread = Thread(partial(self._work, options))

    def _work(self, options: dict[str, object]) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]  # an extra

            settings = wandb.Settings(init_timeout=60, silent=True, console="off", disable_git=True, disable_code=True)
            run = wandb.init(settings=settings, **options)
            while (item := self._queue.get()) is not None:
                step, content = item
                if not isinstance(content, Findings):
                    run.log(scalars(content), step=step)
                    continue
                media: dict[str, object] = {
                    tag: wandb.Image(str(path)) for tag, path in content.figures_by_tag().items()
                }
                if content.page is not None:
                    media[content.tag("report", "page")] = wandb.Html(str(content.page))
                # A resumed run may be beyond its last record already, and wandb drops what is logged for earlier steps.
                run.log(media, step=max(step, run.step))
                run.summary.update(content.texts_by_tag() | content.numbers_by_tag())
            run.finish()
        except BaseException as error:  # wandb raises SystemExit too
            self._warn(f"wandb stopped: {type(error).__name__}: {error}; training goes on")

    def write(self, step: int, record: Record) -> None:
        self._enqueue(step, dict(record))

    def show(self, step: int, findings: Findings) -> None:
        self._enqueue(step, findings)

    def _enqueue(self, step: int, content: Record | Findings) -> None:
        try:
            # Never waits: a slow network would otherwise slow down the training.
            self._queue.put_nowait((step, content))
        except queue.Full:
            if self._thread.is_alive():
                self._warn("wandb is too slow: records are dropped; training goes on")

    def close(self) -> None:
        try:
            self._queue.put(None, timeout=1.0)
        except queue.Full:
            return
        self._thread.join(self._close_s)
        if self._thread.is_alive():
            self._warn(f"wandb did not finish within {self._close_s:g} s; its last records may be missing")


def _run_id(run_dir: Path) -> str:
    """Return the wandb id of this run directory, so that a resumed run continues the same wandb run; a copy of the
    directory gets one of its own.

    The file has the id, where the directory was, and its inode: whoever moves the directory, or sees it through another
    mount, keeps the id. An id alone, written by hand, is taken.
    """
    path = run_dir / "wandb_id.txt"
    try:
        place = [str(run_dir.resolve()), str(run_dir.stat().st_ino)]
        lines = untrusted_io.read_text(path, 10_000).splitlines() if path.exists() else []
        known, *earlier = [line.strip() for line in lines if line.strip()] or [""]
        is_copy = bool(earlier) and not any(a == b for a, b in zip(earlier, place, strict=False))
        own = secrets.token_hex(4) if is_copy or not known else known
        if is_copy:
            dist.log(f"wandb     {run_dir} is a copy of {earlier[0]}: it continues as {own}, not as its run {known}")
        if [known, *earlier] != [own, *place]:
            path.write_text("\n".join([own, *place]) + "\n", encoding="utf-8")
        return own
    except (OSError, ValueError):
        return secrets.token_hex(4)
