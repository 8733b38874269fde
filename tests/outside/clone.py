"""README's commands in README's order, in a clone that holds nothing: `python -m tests.outside.clone`."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        return subprocess.run(["python3", "-m", "tests.outside.readme"], cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
