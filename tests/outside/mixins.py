"""Run transformers' own tests of a model on our class: `python -m tests.outside.mixins [version …]`.

ModelTesterMixin is in the sdist of transformers; GenerationTesterMixin, and that of exporters, in its repository alone:
they are cloned at the version's tag, or taken from a checkout that TRANSFORMERS_REPOSITORY names. Where neither is to
be had, that is said, and the first half is run. The tests themselves are in mixin_cases.py.

What fails for transformers' own LLaMA too is listed and not counted.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from tests.outside import plain, versions

VERSIONS = ("5.4.0", "5.23.0", "5.24.0")  # the oldest that pyproject.toml allows, the pin, the newest
REPOSITORY = "https://github.com/huggingface/transformers"
CASES, CONTROL = Path(__file__).with_name("mixin_cases.py"), "LlamaTest"
# What stands for the mixins that test_modeling_common.py may import, by their files in the repository.
MIXINS = {
    "generation/test_utils.py": "class GenerationTesterMixin: pass\n",
    "exporters/test_export.py": "class ExportTesterMixin: pass\nclass ExportGenerateTesterMixin: pass\n",
}
FAILED = re.compile(r"^(?:SUBFAILED|FAILED|ERROR).*? test_coca\.py::(\w+)::(\w+)", re.MULTILINE)


def suite(version: str, python: Path) -> Path:
    """A folder with the package `tests` of this version of transformers, and with our cases beside it."""
    folder = plain.FOLDER / f"mixins-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    sources = folder / "sources"
    subprocess.run([plain.UV, "pip", "install", "--quiet", "-p", python, "pip", "parameterized"],
                   env=plain.variables(), check=True)  # fmt: skip
    subprocess.run(
        [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "transformers", "-d", sources,
         f"transformers=={version}"],
        env=plain.variables(), check=True,
    )  # fmt: skip
    with tarfile.open(next(sources.glob("*.tar.gz"))) as archive:
        archive.extractall(sources, filter="data")
    tests = folder / "tests"
    shutil.copytree(next(sources.glob("transformers-*/tests")), tests)
    checkout = repository(version, sources / "repository")
    imports = (tests / "test_modeling_common.py").read_text(encoding="utf-8")
    for name, stub in MIXINS.items():
        target = tests / name
        if name.removesuffix(".py").replace("/", ".") not in imports:
            continue
        target.parent.mkdir(exist_ok=True)
        if checkout is not None and (checkout / "tests" / name).is_file():
            shutil.copytree(checkout / "tests" / Path(name).parent, target.parent, dirs_exist_ok=True)
        else:
            print(f"  {name} is not here: what it tests is not run", flush=True)
            target.write_text(stub, encoding="utf-8")
    for package in (tests, *(path for path in tests.iterdir() if path.is_dir())):
        (package / "__init__.py").touch()
    shutil.copy(CASES, folder / "test_coca.py")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")  # none of our settings
    return folder


def repository(version: str, folder: Path) -> Path | None:
    """A checkout of transformers; None: there is none, and none can be reached."""
    if named := os.environ.get("TRANSFORMERS_REPOSITORY"):
        print(f"  TRANSFORMERS_REPOSITORY={named}: should be of {version}, which is not looked at", flush=True)
        return Path(named)
    words = ["git", "clone", "--quiet", "--depth", "1", "--branch", f"v{version}", REPOSITORY, str(folder)]
    return folder if subprocess.run(words, check=False).returncode == 0 else None


def holds(version: str) -> bool:
    python = versions.environment("transformers", version)
    print(f"transformers {version}", flush=True)
    folder = suite(version, python)
    words = [str(python), "-m", "pytest", "-q", "-n", "auto", "-rfE", "--tb=short", "--disable-warnings",
             "-p", "no:hydra_pytest", "-p", "no:anyio", "-p", "no:cacheprovider", "test_coca.py"]  # fmt: skip
    settings = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        words, cwd=folder, env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    print(done.stdout)
    failed = set(FAILED.findall(done.stdout))
    theirs = {test for case, test in failed if case == CONTROL}
    ours = sorted(f"{case}.{test}" for case, test in failed if test not in theirs)
    print(f"transformers {version}: fail for LLaMA too: {', '.join(sorted(theirs)) or 'none'}")
    print(f"transformers {version}: fail for CoCA: {', '.join(ours) or 'none'}", flush=True)
    return not ours and (done.returncode == 0 or (done.returncode == 1 and bool(theirs)))


def main(asked: Iterable[str]) -> int:
    return int(not all([holds(version) for version in asked or VERSIONS]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
