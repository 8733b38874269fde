"""Trials that were never trained."""

from coca_train.atlas.trials import Answers, Trial

LENGTHS = (64, 128, 256)


def trial(row="rope", seed=1, shares=None, **changes):
    """Return a trial. shares: by task, of each length, in hundredths."""
    shares = shares or {"copy": (100, 50, 10), "left": (95, 92, 0)}
    tasks = {
        task: Answers(right=list(each), asked=[100] * len(each), chance=[0.1] * len(each))
        for task, each in shares.items()
    }
    learned = [task for task, each in shares.items() if each[0] >= 90]
    known = {
        "row": row, "method": row, "words": [f"position={row}"], "seed": seed, "rate": 1.0, "protocol": "p",
        "source": "s", "start": {"embedding.weight 8x4": "abc"}, "batches": "b", "weights": "w", "lengths": LENGTHS,
        "tasks": tasks, "learned": learned, "absent": "",
        "valid_losses": {step: dict.fromkeys(tasks, 200 / step) for step in (1000, 2000)},
        "n_parameters": 1000, "tokens_per_s": 1000, "seconds": 60, "made_with": {"torch": "2"},
    }  # fmt: skip
    return Trial(**{**known, **changes})
