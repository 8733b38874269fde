"""A failure's reason as it comes: a lent GPU's time may be over before pytest says it."""

import pytest

from benchmarks.gpu.parts.kernels import WHY


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and "test_kernels_cuda" in report.nodeid:
        crash = getattr(report.longrepr, "reprcrash", None)
        print(
            f"\n{WHY}{report.nodeid}: {' '.join(str(getattr(crash, 'message', report.longrepr)).split())[:600]}",
            flush=True,
        )
