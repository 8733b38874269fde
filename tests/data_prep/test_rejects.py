"""Bad documents: the run stops at the first one, or counts and lists them up to a share."""

import gzip
import json

import pytest

from data_prep import parts
from tests.data_prep.tokenizing import bytes_of, documents, message, records, run, texts, write_jsonl

BAD = b'{"text": broken'


@pytest.mark.usefixtures("forked_workers")
def test_stop_ends_at_the_first_bad_document_and_keeps_what_is_finished(tmp_path):
    documents_ = texts(40)
    path = write_jsonl(tmp_path / "raw" / "a.jsonl", [*documents_[:30], BAD, BAD, *documents_[30:]])
    for workers in (1, 2):
        out = tmp_path / f"{workers}"
        assert message(path.parent, out, work_workers=workers).startswith(f"E-RAW-04 {path}:31: ")
        assert records(out) and not any(record["last"] for record in records(out))
    assert bytes_of(tmp_path / "1") == bytes_of(tmp_path / "2")
    run(path.parent, tmp_path / "1", work_on_error="skip", work_max_reject_share=0.1)
    run(path.parent, tmp_path / "3", work_on_error="skip", work_max_reject_share=0.1)
    assert bytes_of(tmp_path / "1") == bytes_of(tmp_path / "3"), "stop may go on with skip"
    assert message(path.parent, tmp_path / "3").startswith(f"E-RAW-04 {path}:31: "), "but skip not with stop"


def test_skip_counts_and_lists(tmp_path):
    path = write_jsonl(tmp_path / "raw" / "a.jsonl", [*texts(5), BAD, "", *texts(5, 1), b'{"text": 7}'])
    run(path.parent, tmp_path / "out", work_on_error="skip", work_max_reject_share=0.2, work_part_bytes=10**6)
    (record,) = records(tmp_path / "out")
    assert [(reject["line"], reject["code"]) for reject in record["rejects"]] == [(6, "E-RAW-04"), (13, "E-RAW-06")]
    assert set(record["rejects"][0]) == {"line", "byte", "code", "reason", "excerpt"}
    assert record["counts"]["documents"] == 10 and record["counts"]["empty"] == 1
    assert documents(tmp_path / "out")["line"].tolist() == [*range(1, 6), *range(8, 13)]
    assert parts.n_read(record["counts"], record["rejects"]) == 13


def test_too_many_bad_documents_at_the_end_of_an_input(tmp_path):
    path = write_jsonl(tmp_path / "raw" / "a.jsonl", [BAD, *texts(40), BAD])
    text = message(path.parent, tmp_path / "out", work_on_error="skip", work_max_reject_share=0.04)
    assert text.startswith(f"E-RAW-21 {path}: 2 of 42 ")
    assert "(4.76%)" in text and "work.max_reject_share=0.04" in text
    listed = tmp_path / "out" / "rejects" / "text-00000.jsonl"
    assert str(listed) in text
    rows = [json.loads(line) for line in listed.read_text().splitlines()]
    assert [(row["input"], row["line"], row["code"]) for row in rows] == [(str(path), n, "E-RAW-04") for n in (1, 42)]
    assert len(records(tmp_path / "out")) > 1, "finished parts stay"
    run(path.parent, tmp_path / "out", work_on_error="skip", work_max_reject_share=0.05)
    assert records(tmp_path / "out")[-1]["last"] and not listed.exists()


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_too_many_bad_documents_are_reported_early_and_not_too_early(tmp_path, workers):
    good, last = [f"{i}" for i in range(1500)], ["the end"]
    path = write_jsonl(tmp_path / "raw" / "a.jsonl", [BAD] * 100 + good + last)
    more = {"work_workers": workers, "work_on_error": "skip", "work_part_bytes": 2000}
    text = message(path.parent, tmp_path / "out", **more, work_max_reject_share=0.06)
    read = int(text.split(" of ")[1].split()[0].replace(",", ""))
    assert 1000 <= read < 1100 and f"100 of {read:,} documents" in text
    run(path.parent, tmp_path / "out", **more, work_max_reject_share=0.1)


def test_counts_of_an_earlier_run_count(tmp_path):
    """40 % of the first parts are bad: a run that goes on behind them must know."""
    path = write_jsonl(tmp_path / "raw" / "a.jsonl", [*[BAD] * 20, *texts(30)])
    more = {"work_on_error": "skip"}
    message(path.parent, tmp_path / "out", **more, work_max_reject_share=0.39)
    assert records(tmp_path / "out")[0]["rejects"]
    assert "E-RAW-21" in message(path.parent, tmp_path / "out", **more, work_max_reject_share=0.39)
    run(path.parent, tmp_path / "out", **more, work_max_reject_share=0.4)


@pytest.mark.usefixtures("forked_workers")
def test_a_damaged_input_is_never_skipped(tmp_path):
    path = tmp_path / "raw" / "a.jsonl"
    write_jsonl(path, texts(60))
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    (path.parent / "a.jsonl.gz").write_bytes(packed[:-50])
    for workers in (1, 2):
        more = {"text_files": f"[{path.parent}/*.jsonl.gz]", "work_workers": workers, "work_on_error": "skip"}
        assert "E-RAW-14" in message(path.parent, tmp_path / f"{workers}", **more)
        assert not any(record["last"] for record in records(tmp_path / f"{workers}"))
    assert bytes_of(tmp_path / "1") == bytes_of(tmp_path / "2")
