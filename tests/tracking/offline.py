"""What a run of wandb's offline mode wrote, read from its own file: a LevelDB log of protocol buffers."""

import json
import struct
from pathlib import Path
from typing import Any

BLOCK, HEAD = 32768, 7  # [bytes]; of a chunk: checksum, length, kind
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> list[Any]:
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportMissingImports]  # an extra

    data, at, whole, found = path.read_bytes(), HEAD, b"", []
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:  # padding
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEAD])
        whole += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (FULL, LAST):
            found.append(Record.FromString(whole))
            whole = b""
    return found


def read(run_dir: Path) -> dict[str, Any]:
    """Of all offline runs of a directory together: config, summary, history by step, and the images' files."""
    told: dict[str, Any] = {"config": {}, "summary": {}, "history": {}, "ids": set()}
    for path in sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb")):
        for record in records(path):
            told["ids"] |= {record.run.run_id} - {""}
            told["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            summaries = [*record.summary.update, *record.run.summary.update]
            told["summary"] |= {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in summaries}
            if record.WhichOneof("record_type") == "history":
                row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                told["history"].setdefault(record.history.step.num, []).append(row)
    told["images"] = sorted(p.name for p in run_dir.glob("wandb/offline-run-*/files/media/images/**/*.png"))
    return told
