"""One command, launched again and again on forked ranks: what was killed must end like what was not."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

from tests.faults import real
from tests.faults.fork_server import ForkServer, Rank


class Launches:
    """Launches of one command. words: its overrides, but for run.name and run.root. target: what each rank calls."""

    def __init__(
        self, server: ForkServer, words: list[str], folder: Path, target: str = "tests.stages.support:run"
    ) -> None:
        self.server, self.words, self.folder, self.target = server, [*words, f"run.root={folder}"], folder, target

    def launch(self, *words: str, name: str = "r", ranks: int = 2, **options: Any) -> list[Rank]:
        return self._launch(self.target, words, name, ranks, {}, options)

    def train(self, name: str, *words: str, ranks: int = 1) -> Path:
        """A run that must end well; its directory."""
        ended = self.launch(*words, name=name, ranks=ranks)
        assert [rank.code for rank in ended] == [0] * ranks, ended[0].text
        return self.folder / name

    def stopped(self, name: str, after: int, *words: str, ranks: int = 1) -> Path:
        """The same, asked to stop in the last of `after` steps: a checkpoint of it and exit code 75."""
        ended = self._launch("tests.faults.runs:stop_in_step", words, name, ranks, {"step": after}, {})
        assert [rank.code for rank in ended] == [75] * ranks, ended[0].text
        return self.folder / name

    def _launch(
        self, target: str, words: tuple[str, ...], name: str, ranks: int, more: dict[str, Any], options: dict[str, Any]
    ) -> list[Rank]:
        arguments = {"overrides": [*self.words, f"run.name={name}", *words]} | more
        # The same folder for all: a run notes the one it is started in.
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {"cwd": self.folder, **options}
        return self.server.run(target, arguments, ranks=ranks, fail_fast_s=1.0, **options)


class KilledRuns(Launches):
    """Launches of one run, r. `whole` is what is left of the first, which nobody killed.

    operations: by rank, the file operations of the first launch.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.run_dir = self.folder / "r"
        ended = self.launch(inject={"root": str(self.run_dir)})
        assert [rank.code for rank in ended] == [0, 0], ended[0].text
        self.operations = [rank.value["operations"] for rank in ended]
        self.whole = self.left()

    def left(self) -> Any:
        """What must be the same."""
        return real.final_state(self.run_dir)

    def fresh(self) -> None:
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def finish(self) -> str:
        """The same command again until it is done; all it said."""
        log = ""
        for _ in range(3):
            ended = self.launch()
            log += ended[0].text
            if [rank.code for rank in ended] == [0, 0]:
                break
        else:
            raise AssertionError(f"not done after three launches: {log[-5000:]} {ended[1].text[-3000:]}")
        assert self.left() == self.whole
        assert not real.leftovers(self.run_dir)
        return log


def stop_in_step(overrides: list[str], step: int) -> None:
    """One rank of the command, asked to stop while it does a step."""
    from coca_train.training import loop
    from tests.stages.support import run

    lr_at, calls = loop.lr_at, []

    def asking(*arguments: Any) -> float:
        calls.append(arguments)
        if len(calls) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return lr_at(*arguments)

    loop.lr_at = asking
    run(overrides)
