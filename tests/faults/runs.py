"""Two ranks of one command, launched again and again: what was killed must end like what was not."""

import shutil
from pathlib import Path
from typing import Any

from tests.faults import real
from tests.faults.fork_server import ForkServer, Rank


class Runs:
    """Launches of one command. `wanted` is what is left of the first one, which nobody killed.

    target: what a rank calls. words: the command, without run.name. operations: by rank, the file operations of the
    first launch.
    """

    def __init__(self, server: ForkServer, target: str, words: list[str], folder: Path) -> None:
        self.server, self.target, self.words, self.folder = server, target, [*words, f"run.root={folder}"], folder
        self.run_dir = folder / "r"
        ended = self.launch(inject={"root": str(self.run_dir)})
        assert [rank.code for rank in ended] == [0, 0], ended[0].text
        self.operations = [rank.value["operations"] for rank in ended]
        self.wanted = self.left()

    def launch(self, *words: str, name: str = "r", ranks: int = 2, **options: Any) -> list[Rank]:
        arguments = {"overrides": [*self.words, f"run.name={name}", *words]}
        return self.server.run(self.target, arguments, ranks=ranks, fail_fast_s=1.0, **options)

    def left(self) -> Any:
        """What must be the same."""
        return real.final_state(self.run_dir)

    def fresh(self) -> None:
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def finish(self) -> str:
        """The same command again until it is done; all it said."""
        said = ""
        for _ in range(3):
            ended = self.launch()
            said += ended[0].text
            if [rank.code for rank in ended] == [0, 0]:
                break
        else:
            raise AssertionError(f"not done after three launches: {said[-5000:]} {ended[1].text[-3000:]}")
        assert self.left() == self.wanted
        assert not real.leftovers(self.run_dir)
        return said
