"""`python -m coca_train.interop import|export|verify`: as these were called before they were verbs of `coca_train`."""

import sys

from coca_train.commands import main

if __name__ == "__main__":
    words = sys.argv[1:]
    if words and not words[0].startswith("-"):
        sys.exit(main(words))
    sys.exit(max(main([verb, "--help"]) for verb in ("import", "export", "verify")))
