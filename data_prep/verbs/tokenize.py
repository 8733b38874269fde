"""python -m data_prep tokenize: documents to token ids, by many processes; a killed run goes on."""

from data_prep.merging.manifest import describe, existing
from data_prep.merging.merge import merge
from data_prep.schema import PrepareConfig
from data_prep.tokenizing.tokenize import all_inputs, beside_merge, shard, tokenize, unfinished


def run(config: PrepareConfig) -> None:
    """Tokenize this shard's inputs; without shards, merge too. A corpus that is finished is left as it is."""
    with beside_merge(config):
        there = existing(config)
        if there is None:
            every = all_inputs(config)
            tokenize(config, every)
            left = unfinished(config, every)
    if there is not None:
        merge(config)  # of what a killed run did not sweep
        print(f"{config.corpus.dir}: is there already, nothing to do\n{describe(there)}")
    elif shard(config)[1] == 1:
        print(describe(merge(config)))
    elif left:
        print(f"Shard {config.work.shard} is done; {len(left)} of {len(every)} inputs are left to other shards.")
        print("When all shards are done: python -m data_prep merge, with the same settings and without shard=.")
    else:
        print(f"Shard {config.work.shard} is done, and so is every other one ({len(every)} inputs).")
        print("Now: python -m data_prep merge, with the same settings and without shard=.")
