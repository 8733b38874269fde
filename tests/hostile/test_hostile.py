"""Whatever is typed, whatever lies on the disk: an exit code of docs/operations.md, a line that says why, no traceback.

COCA_HOSTILE=600 COCA_HOSTILE_SEED=7 pytest -m slow tests/hostile     so many inputs of that seed
"""

import os
from collections import Counter
from pathlib import Path

import pytest

from coca_train.commands import main
from data_prep.__main__ import main as data_prep_main
from tests.faults.fork_server import ForkServer
from tests.hostile.draws import draw_case, draw_words
from tests.hostile.trial import attempt

SEED = int(os.environ.get("COCA_HOSTILE_SEED", "0"))
TYPED, TRIED = 30, int(os.environ.get("COCA_HOSTILE", "40"))
OF_CONFIGURATIONS = {0, 2, 3, 4}


@pytest.mark.parametrize("number", range(TYPED))
def test_words(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Configurations only, in this process: nothing is started."""
    case = draw_words(SEED, number)
    mains = {"coca_train": main, "data_prep": data_prep_main}
    code = mains[case.program]([*case.words, "--cfg", "job"])
    out, err = capsys.readouterr()
    assert code in OF_CONFIGURATIONS and "Traceback" not in err, (case.words, err)
    assert bool(err.strip()) == bool(code) or out, (case.words, err)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_inputs(server: ForkServer, world: Path, tmp_path: Path) -> None:
    """Verbs run for real, each on a copy of a small world in which one file or one word is hostile."""
    wrong, table = list[str](), Counter[tuple[str, str]]()
    for number in range(TRIED):
        outcome = attempt(server, draw_case(SEED, number), world, tmp_path / "trial")
        kind = outcome.case.kind.partition(":")[0]
        table[kind, outcome.wrong or f"exit code {outcome.code}"] += 1
        if outcome.wrong:
            about = f"{outcome.case.kind} | {outcome.case.about} | {outcome.wrong}"
            wrong.append(f"{number}: {about}\n  {outcome.case.words}\n{outcome.text[-1500:]}")
    print("".join(f"\n{kind:12} {end:24} {n}" for (kind, end), n in sorted(table.items())))
    assert not wrong, "\n".join([f"{len(wrong)} of {TRIED} inputs of seed {SEED}", *wrong])
