import json
import os
import threading

import msgspec
import pytest

from gemmkit.errors import TuningError
from gemmkit.trials.entry import ProblemClass
from gemmkit.trials.exchange import decode_table, import_entries, read_table, write_table


def test_a_table_is_read_as_it_was_written(tmp_path, make_entry):
    entries = [
        make_entry(time_us=3.0, final=True, p20_us=2.9, measured_at=7.0),
        make_entry(problem=ProblemClass(m=1, n=64, k=64, aligned=True)),
        make_entry(config={"BM": 8, "BN": 8}, outcome="wrong", time_us=None, reason="C is NaN"),
    ]
    path = tmp_path / "table.json"
    assert write_table(path, entries) == 3
    found = read_table(path)
    assert sorted(found, key=str) == sorted(entries, key=str)
    assert [each.problem.m for each in found] == [1, 64, 64]


def test_a_table_has_an_entry_a_line(tmp_path, make_entry):
    path = tmp_path / "table.json"
    write_table(path, [make_entry(), make_entry(epilogue="relu")])
    lines = path.read_text().splitlines()
    assert len(lines) == 4
    assert json.loads(lines[1].rstrip(","))["kernel"] == "naive"
    assert json.loads(path.read_text())["version"] == 4


def test_entries_of_older_tables_are_of_precision_ieee(tmp_path, make_entry):
    path = tmp_path / "table.json"
    lower = msgspec.structs.replace(make_entry().problem, precision="tf32")
    write_table(path, [make_entry(), make_entry(problem=lower)])
    text = path.read_text()
    assert text.count('"precision":"tf32"') == text.count("precision") == 1
    older = text.replace('"version": 3', '"version": 2').replace(',"precision":"tf32"', "")
    assert [each.problem.precision for each in read_table(path)] == ["ieee", "tf32"]
    assert [each.problem.precision for each in decode_table(older.encode(), "")] == ["ieee"] * 2


def test_an_empty_table_is_a_table(tmp_path):
    path = tmp_path / "table.json"
    write_table(path, [])
    assert read_table(path) == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "table.json is not a tuning table"),
        (b"{}", "missing required field `format`"),
        (b'{"format": "other", "version": 1, "entries": []}', "is not a tuning table"),
        (b'{"format": "gemmkit tuning table", "version": 5}', "of version 5; this gemmkit reads 4"),
        (b'{"format": "gemmkit tuning table", "version": 1, "entries": [{}]}', r"entries\[0\]"),
        (b"\xff\xfe", "is not a tuning table"),
    ],
)
def test_what_is_no_table_is_refused(data, message):
    with pytest.raises(TuningError, match=message):
        decode_table(data, "table.json")


def test_files_that_cannot_be_used_are_one_clear_error(tmp_path):
    with pytest.raises(TuningError, match=r"cannot read .*: No such file"):
        read_table(tmp_path / "none.json")
    with pytest.raises(TuningError, match=r"cannot write .*: No such file"):
        write_table(tmp_path / "none" / "table.json", [])


def test_import_marks_and_never_overrides_what_was_measured_here(store, make_entry):
    own = make_entry(time_us=10.0)
    store.put(own)
    came = import_entries(
        store,
        [
            msgspec.structs.replace(own, time_us=1.0, measured_at=9e9),
            make_entry(config={"BM": 8, "BN": 32}, time_us=2.0),
            make_entry(config={"BM": 16, "BN": 32}, time_us=3.0, compiler="1.0"),
        ],
    )
    assert (came.added, came.kept, came.stale) == (2, 1, 1)
    assert store.best(own.gpu, own.problem) == own
    assert [each.origin for each in store.entries()].count("imported") == 2


def test_import_serves_where_nothing_was_measured(store, make_entry):
    entry = make_entry(time_us=2.0)
    import_entries(store, [entry])
    assert store.best(entry.gpu, entry.problem).origin == "imported"


def test_what_is_no_file_is_written_to_and_a_link_stays_one(tmp_path, make_entry):
    table, link = tmp_path / "table.json", tmp_path / "link.json"
    link.symlink_to(table)
    assert write_table(link, [make_entry()]) == 1
    assert link.is_symlink()
    assert len(read_table(table)) == 1
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_table(pipe, [make_entry()])
    reader.join()
    assert read == [table.read_bytes()]
    assert pipe.is_fifo()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.json", "pipe", "table.json"]
