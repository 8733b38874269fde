"""Environments as anyone else has them: packages of the plain package index, and nothing that this machine adds."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".outside"
UV = ROOT / ".venv" / "bin" / "uv"
NOT_HERE = 77  # exit code of a part that this machine has no means for
SETTINGS = (
    "UV_FIND_LINKS", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_TORCH_BACKEND", "UV_CONSTRAINT", "UV_OVERRIDE",
    "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX",
)  # fmt: skip


def variables() -> dict[str, str]:
    """The environment variables without those that name other places of packages, for pip and uv."""
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}


def python(version: str) -> str | None:
    """The interpreter of a version such as 3.12, on PATH, of uv or of pyenv; None: this machine has none."""
    words = [str(UV), "python", "find", "--no-python-downloads", "--no-project", "--system", version]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    path = os.pathsep.join([os.environ["PATH"], *map(str, sorted(pyenv.glob(f"versions/{version}*/bin")))])
    found = subprocess.run(words, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def environment(name: str, wanted: Sequence[str], constraints: Path, interpreter: str = sys.executable) -> Path:
    """The Python of .outside/NAME with these packages, made where it is not there yet."""
    folder = FOLDER / name
    made = folder / "bin" / "python"
    if not (folder / "ready").exists():
        FOLDER.mkdir(exist_ok=True)
        for words in (
            ["venv", "--quiet", "--clear", "-p", interpreter, str(folder)],
            ["pip", "install", "--quiet", "-p", str(made), "-c", str(constraints), *wanted],
        ):
            subprocess.run([str(UV), *words], cwd=ROOT, env=variables(), check=True)
        (folder / "ready").touch()
    return made
