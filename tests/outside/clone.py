"""README's commands in README's order, in a clone that holds nothing: `python -m tests.outside.clone 3.12`.

The word is the Python that makes the clone's environment, with packages of the plain package index.
"""

import subprocess
import sys
import tempfile

from tests.outside import plain


def main(words: list[str]) -> int:
    (version,) = words
    if (python := plain.python(version)) is None:
        print(f"There is no Python {version} on this machine.")
        return plain.NOT_HERE
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(plain.ROOT), folder], check=True)
        environment = plain.variables() | {"PYTHON": python}  # of `make setup`
        readme = [python, "-m", "tests.outside.readme"]
        return subprocess.run(readme, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
