"""Base of the three contracts: which settings are tested, and that these are strict and described."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from coca_train.config.files import Registry
from coca_train.testing import parts

if TYPE_CHECKING:
    import pytest

Case = Mapping[str, Any]  # settings as a yaml has them


class Contract:
    """A class of tests that a test file inherits. kind: the attribute that names the tested module. registry: of its
    kind. shipped: the group of configs/ whose yamls that name it are tested too; empty: none.

    cases: further settings to test, whole ones as a yaml has them, without the key that names the module. Of a plugin
    the yamls in configs/ next to the test file are tested, too.
    """

    kind: ClassVar[str]
    registry: ClassVar[Registry]
    shipped: ClassVar[str]
    cases: ClassVar[Sequence[Case]] = ()

    @classmethod
    def settings(cls) -> Mapping[str, Case]:
        """Return all settings that are tested, by name: the cases, then the shipped ones."""
        name, tag = getattr(cls, cls.kind), cls.registry.tag
        cases = {"-".join(["case", *map(_word, case.values())]): {tag: name, **case} for case in cls.cases}
        configs = Path(inspect.getfile(cls)).parent / "configs"
        offered = parts.shipped(cls.shipped, configs if configs.is_dir() else None) if cls.shipped else ()
        return cases | {choice: each for choice, each in offered if each[tag] == name}

    @classmethod
    def products(cls) -> dict[str, tuple[Mapping[str, object], int]]:
        """Return fixtures besides `settings`, each with its values by name, and how many of the settings are combined
        with them."""
        return {}

    def pytest_generate_tests(self, metafunc: "pytest.Metafunc") -> None:
        """Parametrize each test by all settings, or by a few under every value of another fixture."""
        by_name = list(self.settings().items())
        assert by_name, f"{getattr(self, self.kind)}: no yaml of configs/ names it that is tested, so give `cases`"
        for fixture, (values, few) in self.products().items():
            if fixture in metafunc.fixturenames:
                metafunc.parametrize(fixture, list(values.values()), ids=list(values))
                by_name = by_name[:few]
        if "settings" in metafunc.fixturenames:
            metafunc.parametrize("settings", [each for _, each in by_name], ids=[name for name, _ in by_name])

    def test_settings_are_described_and_strict(self, settings: Case) -> None:
        """Every option is in the yaml and has a description; another is refused; what is wrong is said with a fix."""
        typed = parts.strict(self.registry, settings)
        for key, text, fix in self.problems(typed) if hasattr(typed, "problems") else ():
            assert key.startswith(("position.", "model.")) and text and fix

    def problems(self, typed: Any) -> Iterable[tuple[str, str, str]]:
        """Return the problems of such settings with models that few schemes fit."""
        return ()


def _word(value: object) -> str:
    return str(value.get("name", "")) if isinstance(value, Mapping) else str(value)
