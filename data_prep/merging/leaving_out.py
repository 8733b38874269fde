"""What merging leaves out of a source: which documents, how many and why, and when that is too many."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from coca_train.data.storage import flush_to_disk
from coca_train.runtime.errors import DataError
from data_prep.merging.collect import Collection, Part, place
from data_prep.merging.duplicates import DUPLICATE, DUPLICATE_ID, KEPT, NEAR_DUPLICATE, Clash, Stretch, Verdicts
from data_prep.schema import PrepareConfig
from data_prep.tokenizing.parts import COUNTS, SPLITS, n_read

REASONS = {DUPLICATE: "duplicates", NEAR_DUPLICATE: "near_duplicates", DUPLICATE_ID: "duplicate_ids"}


def judged(stretches: Iterable[Stretch], verdicts: Verdicts, drop: bool) -> Iterator[tuple[Stretch, np.ndarray]]:
    """Each stretch with bool (n,): which of its documents stay."""
    for stretch in stretches:
        verdict = verdicts.of(stretch.first, len(stretch.documents))
        yield stretch, (verdict == KEPT) | ((verdict == DUPLICATE) & (not drop))


def count(
    collection: Collection, parts: list[Part], verdicts: Verdicts, drop: bool
) -> tuple[dict[str, int], list[int]]:
    """What became of the documents of a source, for people; and how many stay in each split."""
    counts = Counter({"read": 0, "kept": 0, **dict.fromkeys(REASONS.values(), 0), "rejected": 0})
    for part in parts:
        record = part.record
        counts.update({rule: n for rule, n in record["counts"].items() if rule not in COUNTS})
        counts["rejected"] += len(record["rejects"])
        counts["read"] += n_read(record)
    sizes = np.zeros(len(SPLITS), np.int64)
    for stretch, keep in judged(collection.stretches(parts), verdicts, drop):
        verdict = verdicts.of(stretch.first, len(stretch.documents))
        for number, reason in REASONS.items():
            counts[reason] += int((verdict == number).sum())
        sizes += np.bincount(stretch.documents["split"][keep], minlength=len(SPLITS))
    counts["kept"] = int(sizes.sum())
    return dict(counts), sizes.tolist()


def refuse(config: PrepareConfig, name: str, counts: dict[str, int]) -> None:
    """A source of which nothing is left, or too much of which has an id of another."""
    if not counts["kept"]:
        why = ", ".join(f"{n:,} {reason.replace('_', ' ')}" for reason, n in counts.items() if n and reason != "read")
        raise DataError(
            f"E-RAW-27 corpus.sources.{name}: no document is left of {counts['read']:,} ({why or 'none read'}); a "
            "source must have at least one. Fix: check its filter and files, or remove the source"
        )
    if counts["duplicate_ids"] > (limit := config.work.max_reject_share) * counts["read"]:
        raise DataError(
            f"E-RAW-21 corpus.sources.{name}: {counts['duplicate_ids']:,} of {counts['read']:,} documents have the id "
            f"of another document and another text, more than work.max_reject_share={limit}. Fix: check id_field, or "
            "set it to null"
        )


def clash_error(collection: Collection, clash: Clash) -> DataError:
    return DataError(
        f"E-RAW-22 {collection.place(clash.document)}: has the id of {collection.place(clash.first)}, but another "
        "text; ids must be unique within a source. Fix: remove one, set id_field to a field that is unique or to null; "
        "or work.on_error=skip"
    )


def write_rejects(path: Path, parts: list[Part], collection: Collection, verdicts: Verdicts) -> None:
    """One JSON object a line, in the order of the input: what could not be used, and what came with a taken id."""
    with open(path, "w", encoding="utf-8") as file:
        for part in parts:
            rows = [{"input": part.input.path, **reject} for reject in part.record["rejects"]]
            for stretch in collection.stretches([part]):
                verdict = verdicts.of(stretch.first, len(stretch.documents))
                for line in stretch.documents["line"][verdict == DUPLICATE_ID].tolist():
                    reason = f"{place(part.input, line)} has the id of an earlier document, but another text"
                    reject = {"line": line, "byte": None, "code": "E-RAW-22", "reason": reason, "excerpt": ""}
                    rows.append({"input": part.input.path, **reject})
            for row in sorted(rows, key=lambda row: row["line"]):
                file.write(json.dumps(row, sort_keys=True) + "\n")
        flush_to_disk(file)
