"""Trackers: sinks for people who watch many runs at once, TensorBoard and Weights & Biases.

Beside the records of the steps they get the run's hyper-parameters when it begins, and when a report is made its
figures as images, its page, its sample and verdicts as text, and how far the model reads as numbers. What they show
stands in groups, alike in both: train/, valid/, reach/ (probes and verdicts) and report/.
"""

import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import yaml

from coca_train.runtime import dist, outside

Record = Mapping[str, Any]
Warn = Callable[[str], None]


class Findings(NamedTuple):
    """What a report has to show. stage: that it is about, "" of the run's last. figures: PNG files by name.

    texts, numbers: by name; of a name's parts "/" stands between. page: of the report, a whole HTML file.
    """

    stage: str
    figures: Mapping[str, Path]
    texts: Mapping[str, str]
    numbers: Mapping[str, float]
    page: Path | None = None

    def tag(self, group: str, name: str) -> str:
        """reach/reads/plain, of a stage reach/<stage>/reads/plain."""
        return "/".join(part for part in (group, self.stage, name) if part)

    @property
    def reach(self) -> dict[str, float]:
        """The numbers, by tag."""
        return {self.tag("reach", name): number for name, number in self.numbers.items()}

    @property
    def words(self) -> dict[str, str]:
        """The texts, by tag."""
        return {self.tag("report", name): text for name, text in self.texts.items()}

    @property
    def images(self) -> dict[str, Path]:
        """The figures, by tag."""
        return {self.tag("report", name): path for name, path in self.figures.items()}


class HyperParameters(NamedTuple):
    """What trackers are told of a run's settings: all of them, nested, and the same of a run without any words."""

    settings: Record
    defaults: Record

    @property
    def changed(self) -> dict[str, Any]:
        """Those that differ from the defaults, by their full names."""
        defaults = dict(flat(self.defaults))
        return {key: value for key, value in flat(self.settings) if key not in defaults or defaults[key] != value}


def scalars(record: Record) -> dict[str, float]:
    """Numbers of a record by tag: what neither a validation nor a probe recorded is of the training."""
    tags = {key: value for key, value in record.items() if isinstance(value, int | float)}
    return {_tag(key): value for key, value in tags.items()}


def _tag(key: str) -> str:
    group, _, name = key.partition("/")
    return {"valid": key, "probe": f"reach/{name}"}.get(group, f"train/{key}")


# Settings by which runs are compared even where nobody chose them.
COMPARED = ("position.scheme", "position.frequencies.name", "visibility.name", "train.seq_len", "optim.lr", "run.seed")


class Sink(Protocol):
    def write(self, step: int, record: Record) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Tracker(Sink, Protocol):
    def show(self, step: int, findings: Findings) -> None: ...


class TensorBoardSink:
    """TensorBoard events in <run>/tensorboard, one run there; events beyond start_step are purged on resume.

    Settings and findings have event files of their own, whose names end in `.config`, `.report` and `.report-<stage>`
    and which are written anew: a run that goes on says nothing twice.
    """

    def __init__(self, directory: Path, start_step: int, hyper_parameters: HyperParameters) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._directory, self._hyper_parameters = directory, hyper_parameters
        begun = any(directory.glob("events.*"))
        with self._anew("config") as writer:
            for tag, shown in (("config", hyper_parameters.settings), ("changed", hyper_parameters.changed)):
                writer.add_text(f"config/{tag}", verbatim(yaml.safe_dump(dict(shown), sort_keys=False)), 0)
        # From the first step on as well: a run that was killed before its first save begins anew in the same folder.
        self._writer = SummaryWriter(str(directory), purge_step=start_step + 1 if begun else None)

    @contextmanager
    def _anew(self, name: str) -> Iterator[Any]:
        """The writer of an event file that takes the place of an earlier one."""
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
        with self._anew(f"report-{findings.stage}" if findings.stage else "report") as writer:
            for tag, path in findings.images.items():
                with Image.open(path) as image:
                    writer.add_image(tag, np.asarray(image.convert("RGB")), step, dataformats="HWC")
            for tag, text in findings.words.items():
                writer.add_text(tag, verbatim(text), step)
            for tag, number in findings.reach.items():
                writer.add_scalar(tag, number, step)
            if not findings.stage:
                self._compared(writer, findings.reach)

    def _compared(self, writer: Any, reach: Mapping[str, float]) -> None:
        """A line of the table in which runs are compared: settings that somebody chose, and those that anyone asks for.
        TensorBoard orders them by name, so that among all of them the few that matter would be lost."""
        from torch.utils.tensorboard.summary import hparams

        every = dict(flat(self._hyper_parameters.settings))
        settings = self._hyper_parameters.changed | {key: every[key] for key in COMPARED if key in every}
        plain = {key: value for key, value in settings.items() if isinstance(value, bool | int | float | str)}
        # Not add_hparams, which makes a run of its own for them.
        for summary in hparams(plain, dict(reach)):
            writer.file_writer.add_summary(summary)

    def close(self) -> None:
        self._writer.close()


def flat(values: Record, above: str = "") -> Iterator[tuple[str, Any]]:
    """model.d_model, 64"""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def verbatim(text: str) -> str:
    """As Markdown that shows these very lines."""
    return "".join(f"    {line}\n" for line in text.splitlines())


class WandbSink:
    """Weights & Biases, on a thread of its own with a bounded queue: training never waits for it.

    config: what is uploaded, chosen by the caller (no paths, no secrets). Findings are images and a page of the last
    step, and the run's summary: what is said twice is there once. When the queue is full records are dropped; after a
    failure wandb stays silent. close() waits at most close_s seconds.
    """

    def __init__(
        self, run_dir: Path, mode: str, project: str, name: str, config: Record, warn: Warn, close_s: float = 30.0
    ) -> None:
        self._warn = warn
        self._close_s = close_s
        self._queue: queue.Queue[tuple[int, Record | Findings] | None] = queue.Queue(maxsize=1000)
        options = {"dir": str(run_dir), "mode": mode, "project": project, "name": name, "config": dict(config)}
        options |= {"id": _run_id(run_dir), "resume": "allow"}
        # A daemon: a tracker that hangs for good must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, args=(options,), name="wandb", daemon=True)
        self._thread.start()

    def _work(self, options: dict[str, Any]) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]  # an extra

            settings = wandb.Settings(init_timeout=60, silent=True, console="off", disable_git=True, disable_code=True)
            run = wandb.init(settings=settings, **options)
            while (item := self._queue.get()) is not None:
                step, told = item
                if isinstance(told, Findings):
                    media: dict[str, Any] = {tag: wandb.Image(str(path)) for tag, path in told.images.items()}
                    if told.page is not None:
                        media[told.tag("report", "page")] = wandb.Html(str(told.page))
                    # A run that goes on is beyond its last record already, and what is logged behind it is dropped.
                    run.log(media, step=max(step, run.step))
                    run.summary.update({**told.words, **told.reach})
                    continue
                run.log(scalars(told), step=step)
            run.finish()
        except BaseException as error:  # wandb raises SystemExit too
            self._warn(f"wandb stopped: {type(error).__name__}: {error}; training goes on")

    def write(self, step: int, record: Record) -> None:
        self._tell(step, dict(record))

    def show(self, step: int, findings: Findings) -> None:
        self._tell(step, findings)

    def _tell(self, step: int, told: Record | Findings) -> None:
        try:
            # Never waits: a tracker behind a slow network would become the speed of the training.
            self._queue.put_nowait((step, told))
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
    """The wandb id of this run directory, so that a resumed run goes on in the same wandb run; a copy of the directory
    gets one of its own.

    Beside the id stands where the directory was, and its inode: whoever moves it, or sees it through another mount,
    keeps the id. An id alone, written by hand, is taken.
    """
    path = run_dir / "wandb_id.txt"
    try:
        here = str(run_dir.resolve()), str(run_dir.stat().st_ino)
        known, *place = outside.read_text(path, 10_000).split("\n") if path.exists() else [""]
        place = [line for line in place if line]
        is_ours = not place or place[0] == here[0] or place[1:] == [here[1]]
        own = known.strip() if known.strip() and is_ours else secrets.token_hex(4)
        if not is_ours:
            dist.log(
                f"wandb     {run_dir} is a copy of {place[0]}: not its run {known.strip()}, but {own} from here on"
            )
        if [known, *place] != [own, *here]:
            path.write_text("\n".join([own, *here]) + "\n", encoding="utf-8")
        return own
    except (OSError, ValueError):
        return secrets.token_hex(4)
