"""Which tests execute which lines: a pytest plugin, `python -m pytest -p tests.mutations.cover`.

It writes two files into `.pytest_cache/mutations`, which git ignores: coverage's data with a context for each test,
and of every test that passed how long it took. What a test does in processes of its own is not seen; the processor
time of those tells at least which tests have some.
"""

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

SOURCES = ("coca_train", "data_prep")
FOLDER = Path(".pytest_cache/mutations")


class Recorder:
    """Gives every test a context of its own, from its set-up to its tear-down."""

    def __init__(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / "lines").unlink(missing_ok=True)
        self.seconds: dict[str, float] = defaultdict(float)
        self.in_children: dict[str, float] = {}
        self.unusable: set[str] = set()
        self.coverage = coverage.Coverage(data_file=FOLDER / "lines", source=SOURCES, config_file=False)
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.coverage.switch_context(item.nodeid)
        before = os.times()
        result = yield
        after = os.times()
        self.in_children[item.nodeid] = after.children_user - before.children_user
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:  # a skipped test catches nothing either
            self.unusable.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        tests = {
            test: {"seconds": round(seconds, 3), "in_children": round(self.in_children[test], 3)}
            for test, seconds in self.seconds.items()
            if test not in self.unusable
        }
        (FOLDER / "tests.json").write_text(json.dumps(tests, indent=0))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder())
