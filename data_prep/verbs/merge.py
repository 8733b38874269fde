"""python -m data_prep merge"""

from data_prep.merging.manifest import describe, existing
from data_prep.merging.merge import merge
from data_prep.schema import PrepareConfig


def run(config: PrepareConfig) -> None:
    there = existing(config) is not None
    manifest = merge(config)
    if there:
        print(f"{config.corpus.dir}: is there already, nothing to do\n")
    print(describe(manifest))
