import multiprocessing
import os
import re
import sqlite3
import threading

import msgspec
import pytest

from gemmkit.errors import TuningError
from gemmkit.gpu import BOARDS
from gemmkit.problem import GemmProblem
from gemmkit.trials.entry import ProblemClass, gpu_key
from gemmkit.trials.freshness import Freshness
from gemmkit.trials.store import Store, by_time, default_store_path, fastest
from gemmkit.trials.store_file import APPLICATION_ID, SCHEMA_VERSION

GPU = "h100-132sm"
CUBE = ProblemClass(m=64, n=64, k=64, aligned=True)


def changed(entry, **changes):
    return msgspec.structs.replace(entry, **changes)


def test_key_of_a_board():
    assert gpu_key(BOARDS["h100"]) == GPU
    assert gpu_key(BOARDS["rtx3090"]) == "rtx3090-82sm"


@pytest.mark.parametrize(
    ("problem", "aligned"),
    [
        (GemmProblem(63, 64, 64), True),
        (GemmProblem(64, 63, 64), False),
        (GemmProblem(64, 64, 63), False),
        (GemmProblem(64, 64, 64, lda=65), False),
        (GemmProblem(64, 64, 64, ldc=68), True),
    ],
)
def test_class_knows_how_rows_lie(problem, aligned):
    found = ProblemClass.of(problem)
    assert found == ProblemClass(m=problem.m, n=problem.n, k=problem.k, aligned=aligned)
    assert str(found).endswith("unaligned rows") is not aligned


def test_reading_makes_no_file(store):
    assert store.entries() == [] == store.gpus() == store.winners(GPU)
    assert store.best(GPU, CUBE) is None
    assert not store.path.exists()


def test_what_is_put_is_read_by_another(store, make_entry, freshness):
    entry = make_entry(p20_us=9.5, samples=4, reason="", measured_at=5.0, predicted_us=8.0)
    assert store.put(entry) == 1
    other = Store(store.path, freshness)
    assert other.entries() == [entry]
    assert other.gpus() == [GPU]
    assert other.best(GPU, CUBE) == entry
    assert entry.tflops == pytest.approx(2 * 64**3 / 10e6)
    assert entry.label == "naive:BM=32,BN=32"
    assert entry.tile_config["BM"] == 32


def test_entries_are_chosen_by_gpu_class_and_epilogue(store, make_entry):
    wide = ProblemClass(m=64, n=128, k=64, aligned=True)
    store.put(make_entry(), make_entry(problem=wide), make_entry(gpu="rtx3090-82sm"))
    store.put(make_entry(epilogue="relu"))
    assert len(store.entries()) == 4
    assert len(store.entries(GPU)) == 3
    assert len(store.entries(GPU, CUBE)) == 2
    assert [each.epilogue for each in store.entries(GPU, CUBE, epilogue="relu")] == ["relu"]
    assert len(store.entries(GPU, epilogue="none")) == 2


def test_best_is_the_fastest_right_one(store, make_entry):
    store.put(
        make_entry(config={"BM": 8, "BN": 32}, time_us=5.0),
        make_entry(config={"BM": 16, "BN": 32}, time_us=4.0),
        make_entry(config={"BM": 32, "BN": 32}, time_us=1.0, outcome="wrong"),
        make_entry(config={"BM": 4, "BN": 32}, time_us=None, outcome="uncompiled"),
    )
    assert store.best(GPU, CUBE).config["BM"] == 16
    assert [each.time_us for each in by_time(store.entries())] == [4.0, 5.0]


def test_a_time_alone_must_be_clearly_shorter(make_entry):
    final = make_entry(time_us=10.0, final=True)
    assert fastest([make_entry(time_us=9.6), final]) == final
    assert fastest([make_entry(time_us=9.4), final]).time_us == 9.4


def test_a_look_is_compared_with_the_looks_of_finals(make_entry):
    final = make_entry(time_us=12.0, look_us=10.0, final=True)
    assert fastest([make_entry(time_us=10.1), final]) == final
    assert fastest([make_entry(time_us=9.9), final]).time_us == 9.9
    semifinal = make_entry(time_us=11.5, look_us=10.0)
    assert fastest([semifinal, final]) == final, "within the 5 % of what was not proven"


def test_own_measurements_go_before_imported_ones(make_entry):
    own = make_entry(time_us=10.0)
    other = make_entry(time_us=1.0, origin="imported", final=True)
    assert fastest([other, own]) == own
    assert fastest([other]) == other


def test_another_epilogue_serves_where_there_is_none_of_this(store, make_entry):
    store.put(make_entry(epilogue="relu", time_us=3.0))
    assert store.best(GPU, CUBE).epilogue == "relu"
    store.put(make_entry(time_us=5.0))
    assert store.best(GPU, CUBE).epilogue == "none"
    assert store.best(GPU, CUBE, "relu").time_us == 3.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source": "0123456789abcdef"}, "other source"),
        ({"compiler": "12.9.1"}, "other compiler"),
        ({"kernel": "no_such_kernel", "source": "x"}, "no such kernel"),
    ],
)
def test_stale_entries_are_kept_and_never_the_best(store, make_entry, changes, reason):
    stale = make_entry(**{"time_us": 1.0} | changes)
    fresh = make_entry(time_us=2.0)
    store.put(stale, fresh)
    assert store.staleness(stale) == reason
    assert store.staleness(fresh) is None
    assert store.best(GPU, CUBE) == fresh
    assert store.winners(GPU) == [fresh]
    assert stale in store.entries(GPU, CUBE)


def test_without_a_compiler_none_is_other(make_entry):
    assert Freshness(compiler=None).staleness(make_entry(compiler="1.0")) is None


def test_the_same_trial_again_replaces_the_old_one(store, make_entry):
    first = make_entry(measured_at=1.0)
    assert store.put(first) == 1
    assert store.put(changed(first, time_us=8.0, measured_at=2.0)) == 1
    assert [each.time_us for each in store.entries()] == [8.0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"final": True}, {"final": False, "measured_at": 9.0}),
        ({"origin": "measured"}, {"origin": "imported", "final": True, "measured_at": 9.0}),
        ({"measured_at": 5.0}, {"measured_at": 4.0}),
    ],
)
def test_a_weaker_word_does_not_replace_a_stronger(store, make_entry, old, new):
    store.put(make_entry(time_us=10.0, **old))
    assert store.put(make_entry(time_us=1.0, **new)) == 0
    assert [each.time_us for each in store.entries()] == [10.0]


def test_the_order_of_keys_does_not_matter(store, make_entry):
    store.put(make_entry(config={"BM": 32, "BN": 32}), make_entry(config={"BN": 32, "BM": 32}))
    assert len(store.entries()) == 1


def test_winners_are_one_a_class_and_epilogue(store, make_entry):
    wide = ProblemClass(m=64, n=128, k=64, aligned=True)
    for time_us in (3.0, 2.0):
        config = {"BM": int(time_us), "BN": 32}
        store.put(make_entry(time_us=time_us, config=config))
        store.put(make_entry(time_us=time_us, config=config, problem=wide))
        store.put(make_entry(time_us=time_us, config=config, epilogue="relu"))
    winners = store.winners(GPU)
    assert [(each.problem, each.epilogue) for each in winners] == [
        (CUBE, "none"),
        (CUBE, "relu"),
        (wide, "none"),
    ]
    assert {each.time_us for each in winners} == {2.0}
    assert len(store.winners(GPU, "relu")) == 1


def test_several_are_put_all_or_none(store, make_entry):
    with pytest.raises(TypeError):
        store.put(make_entry(), changed(make_entry(), config={"BM": object()}))
    assert store.entries() == []


def damaged(path, damage):
    """What is left of a store after an accident; its bytes."""
    data = path.read_bytes()
    assert len(data) > 20_000
    broken = b"no database at all" * 100 if damage == "garbage" else data[: len(data) // 2]
    for journal in path.parent.glob("*-wal"):
        journal.unlink()
    path.write_bytes(broken)
    return broken


def folder(path):
    """Names and contents of all files of a folder."""
    return {each.name: each.read_bytes() for each in path.iterdir()}


@pytest.fixture
def many(make_entry):
    return [make_entry(config={"BM": n, "BN": 1}) for n in range(1, 400)]


@pytest.mark.parametrize("damage", ["garbage", "torn"])
def test_the_own_store_is_moved_aside_when_it_is_damaged(
    store, make_entry, many, freshness, damage, monkeypatch
):
    monkeypatch.setattr("gemmkit.trials.store.default_store_path", lambda: store.path)
    store.put(*many)
    store.close()
    broken = damaged(store.path, damage)
    before = folder(store.path.parent)
    with pytest.warns(RuntimeWarning, match="next `gemmkit tune` begins a new one"):
        assert Store(freshness=freshness).entries() == []
    assert folder(store.path.parent) == before
    again = Store(freshness=freshness)
    with pytest.warns(RuntimeWarning, match="was damaged: it is now store.sqlite3.damaged-"):
        again.put(make_entry())
    (aside,) = store.path.parent.glob("store.sqlite3.damaged-*[0-9]")
    assert aside.read_bytes() == broken
    assert len(again.entries()) == 1


@pytest.mark.parametrize("damage", ["garbage", "torn"])
def test_a_damaged_file_that_was_named_stays_as_it_is(store, make_entry, many, damage):
    store.put(*many)
    store.close()
    damaged(store.path, damage)
    before = folder(store.path.parent)
    words = "is not a tuning store of gemmkit" if damage == "garbage" else "is damaged"
    for use in (store.entries, store.check, lambda: store.put(make_entry())):
        with pytest.raises(TuningError, match=f"{words}.*was left as it is"):
            use()
        assert folder(store.path.parent) == before


def another_applications(path, *, wal=False, version=0, mark=0, table="trials (gpu TEXT, note)"):
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute(f"PRAGMA application_id = {mark}")
        connection.execute(f"CREATE TABLE {table}")
    connection.close()


FOREIGN = {
    "text": lambda path: path.write_text("root:x:0:0:root:/root:/bin/bash\n" * 40),
    "short": lambda path: path.write_bytes(b"\n"),
    "head of a database": lambda path: path.write_bytes(b"SQLite format 3\0"),
    "a table": another_applications,
    "a table with a version": lambda path: another_applications(path, version=2),
    "a later version": lambda path: another_applications(path, version=9),
    "in WAL mode": lambda path: another_applications(path, wal=True, table="notes (text)"),
    "marked": lambda path: another_applications(path, mark=0x0F055112, version=4),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_no_other_file_is_touched(store, make_entry, kind):
    FOREIGN[kind](store.path)
    before = folder(store.path.parent)
    for use in (store.entries, store.check, lambda: store.put(make_entry())):
        with pytest.raises(TuningError, match=r"is not a tuning store of gemmkit|is damaged"):
            use()
        assert folder(store.path.parent) == before


def test_what_is_no_file_is_not_a_store(tmp_path, make_entry):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(TuningError, match="is not a tuning store of gemmkit"):
            Store(path).put(make_entry())
        with pytest.raises(TuningError, match="is not a tuning store of gemmkit"):
            Store(path).entries()
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


def test_reading_writes_nothing(store, make_entry, freshness):
    store.put(make_entry())
    store.close()
    before = folder(store.path.parent)
    assert list(before) == [store.path.name]
    store.path.parent.chmod(0o500)
    try:
        reader = Store(store.path, freshness)
        assert len(reader.entries()) == 1
        assert folder(store.path.parent) == before
    finally:
        store.path.parent.chmod(0o700)


def test_a_reader_sees_what_an_open_writer_has_put(store, make_entry, freshness):
    reader = Store(store.path, freshness)
    for count in range(1, 4):
        store.put(make_entry(config={"BM": count, "BN": 1}))
        assert len(reader.entries()) == count


def test_a_store_from_before_the_mark_is_read_and_then_marked(store, make_entry):
    store.put(make_entry())
    store.close()
    with sqlite3.connect(store.path) as connection:
        connection.execute("PRAGMA application_id = 0")
    connection.close()
    before = folder(store.path.parent)
    store.check()
    assert len(store.entries()) == 1
    assert folder(store.path.parent) == before
    assert store.put(make_entry(epilogue="relu")) == 1
    store.close()
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    connection.close()


def test_a_file_that_is_not_there_is_no_store_to_consult(store):
    with pytest.raises(TuningError, match="there is no tuning store"):
        store.check()


def test_an_empty_file_becomes_a_store(store, make_entry):
    store.path.touch()
    assert store.entries() == []
    assert store.put(make_entry()) == 1


def test_a_file_that_was_moved_is_made_anew(store, make_entry):
    store.put(make_entry())
    store.path.rename(store.path.with_name("elsewhere"))
    assert store.entries() == []
    assert store.put(make_entry()) == 1


OLDER = """
CREATE TABLE trials (
    gpu TEXT NOT NULL, m INTEGER NOT NULL, n INTEGER NOT NULL, k INTEGER NOT NULL, {batch}
    aligned INTEGER NOT NULL, epilogue TEXT NOT NULL, kernel TEXT NOT NULL,
    config TEXT NOT NULL, source TEXT NOT NULL, compiler TEXT NOT NULL,
    outcome TEXT NOT NULL, final INTEGER NOT NULL, samples INTEGER NOT NULL, time_us REAL,
    measured_at REAL NOT NULL, origin TEXT NOT NULL, entry TEXT NOT NULL,
    PRIMARY KEY (gpu, m, n, k, {key} aligned, epilogue, kernel, config, source, compiler)
) WITHOUT ROWID;
PRAGMA journal_mode = WAL;
PRAGMA user_version = {version};
"""


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_an_older_version_is_carried_over(store, make_entry, version):
    """Its problems were row-major fp32, and in version 1 single products."""
    old = make_entry(time_us=3.0)
    text = msgspec.json.encode(old).decode()
    assert not any(name in text for name in ("batch", "layout", "dtype"))
    batch = ["batch INTEGER NOT NULL DEFAULT 1,", "batch,"] if version == 2 else ["", ""]
    values = (
        *("h100-132sm", 64, 64, 64, *([1] if version == 2 else []), 1, "none", "naive"),
        *("BM=32,BN=32", old.source, old.compiler, "ok", 0, 0, 3.0, 0.0, "measured", text),
    )
    with sqlite3.connect(store.path) as connection:
        connection.executescript(OLDER.format(batch=batch[0], key=batch[1], version=version))
        connection.execute(f"INSERT INTO trials VALUES ({', '.join('?' * len(values))})", values)
    connection.close()
    assert store.entries() == [old]
    assert store.best(GPU, CUBE) == old
    assert store.best(GPU, msgspec.structs.replace(CUBE, layout="nt")) is None
    assert store.put(make_entry(time_us=2.0)) == 1
    assert [each.time_us for each in store.entries()] == [2.0]
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    connection.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transb": True}, "64x64x64 NT"),
        ({"transa": True, "transb": True, "transc": True}, "64x64x64 col-NN"),
        ({"dtype": "float16"}, "64x64x64, fp16"),
        ({"dtype": "bfloat16", "out_dtype": "float32"}, "64x64x64, bf16 to fp32"),
        ({"dtype": "float64", "lda": 65}, "64x64x64, fp64, unaligned rows"),
        ({"precision": "tf32"}, "64x64x64, fp32 (precision tf32)"),
    ],
    ids=str,
)
def test_layouts_and_types_are_classes_of_their_own(store, make_entry, changes, words):
    problem = GemmProblem(64, 64, 64, **changes)
    kind = ProblemClass.of(problem)
    assert str(kind) == words
    assert ProblemClass.of(kind.problem) == kind
    store.put(make_entry(time_us=1.0), make_entry(problem=kind, time_us=50.0))
    assert store.best(GPU, CUBE).time_us == 1.0
    assert store.best(GPU, kind).time_us == 50.0
    assert len(store.winners(GPU)) == 2


@pytest.mark.parametrize(
    ("dtype", "least"), [("float32", 4), ("float64", 2), ("float16", 8), ("bfloat16", 8)]
)
def test_rows_are_aligned_by_bytes(dtype, least):
    assert ProblemClass.of(GemmProblem(3 * least, least, least, dtype=dtype)).aligned
    assert not ProblemClass.of(GemmProblem(8, least, least // 2, dtype=dtype)).aligned
    assert not ProblemClass.of(GemmProblem(8, 8, 8, dtype=dtype, alignment=8)).aligned


def test_a_batch_is_a_class_of_its_own(store, make_entry):
    several = ProblemClass(m=64, n=64, k=64, aligned=True, batch=100)
    assert ProblemClass.of(GemmProblem(64, 64, 64, batch=100)) == several
    assert several.shape == "64x64x64x100"
    assert several.flops == 100 * CUBE.flops
    assert store.put(make_entry(time_us=1.0), make_entry(problem=several, time_us=50.0)) == 2
    assert store.best(GPU, CUBE).time_us == 1.0
    assert store.best(GPU, several).time_us == 50.0
    assert len(store.winners(GPU)) == 2


def test_groups_are_classes_of_their_own_in_any_order(store, make_entry):
    problem = GemmProblem.of_groups("64x64x32,8x9x64*2,64x64x32:64:64:80")
    kind = ProblemClass.of(problem)
    assert (kind.m, kind.n, kind.k, kind.batch) == (64, 64, 64, 1)
    assert kind.groups == "8x9x64*2,64x64x32*2"
    assert str(kind) == "8x9x64*2,64x64x32*2, unaligned rows"
    assert kind == ProblemClass.of(GemmProblem.of_groups("8x9x64,64x64x32*2,8x9x64"))
    assert ProblemClass.of(kind.problem) == kind
    assert kind.flops == problem.flops
    aligned = ProblemClass.of(GemmProblem.of_groups("8x8x8,4x4x4", alignment=4))
    assert not aligned.aligned
    assert ProblemClass.of(aligned.problem) == aligned
    assert not store.has_groups(GPU)
    single = msgspec.structs.replace(kind, groups="")
    store.put(make_entry(problem=single, time_us=1.0), make_entry(problem=kind, time_us=50.0))
    assert store.has_groups(GPU)
    assert not store.has_groups("t4-40sm")
    assert store.best(GPU, single).time_us == 1.0
    assert store.best(GPU, kind).time_us == 50.0
    assert len(store.winners(GPU)) == 2


@pytest.mark.parametrize("version", [3, 4])
def test_a_store_from_before_groups_or_precisions_is_carried_over(store, make_entry, version):
    """All of its problems were of precision ieee."""
    store.put(make_entry(time_us=3.0))
    store.close()
    missing = {3: ("groups", "precision"), 4: ("precision",)}[version]
    with sqlite3.connect(store.path) as connection:
        (table,) = connection.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'trials'"
        ).fetchone()
        for name in missing:
            table = re.sub(rf" {name} TEXT NOT NULL DEFAULT '\w*',| {name},", "", table)
        names = [each[1] for each in connection.execute("PRAGMA table_info(trials)")]
        kept = ", ".join(name for name in names if name not in missing)
        connection.execute("ALTER TABLE trials RENAME TO later")
        connection.execute(table)
        connection.execute(f"INSERT INTO trials ({kept}) SELECT {kept} FROM later")
        connection.execute("DROP TABLE later")
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    lower = ProblemClass.of(GemmProblem(64, 64, 64, precision="tf32"))
    assert [each.time_us for each in store.entries()] == [3.0]
    assert store.best(GPU, CUBE).time_us == 3.0
    assert store.best(GPU, lower) is None
    assert not store.has_groups(GPU)
    assert store.put(make_entry(problem=lower, time_us=1.0)) == 1
    assert store.best(GPU, CUBE).time_us == 3.0
    assert store.best(GPU, lower).time_us == 1.0


def test_a_later_schema_is_refused(store, make_entry):
    store.put(make_entry())
    store.close()
    with sqlite3.connect(store.path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(TuningError, match="a later gemmkit wrote the tuning store"):
        Store(store.path).entries()
    assert store.path.exists()


def test_a_folder_that_cannot_be_is_one_clear_error(tmp_path, make_entry):
    (tmp_path / "file").write_text("")
    with pytest.raises(TuningError, match=r"cannot be used .*: name another with --store"):
        Store(tmp_path / "file" / "store.sqlite3").put(make_entry())


def test_default_path_is_in_the_cache_folder(shared_cache_dir):
    assert default_store_path().is_relative_to(shared_cache_dir)


def _put_many(path, freshness, entries, meet):
    store = Store(path, freshness)
    meet.wait()
    for entry in entries:
        store.put(entry)
    store.close()


def test_many_processes_write_at_once(store, make_entry, freshness):
    context = multiprocessing.get_context("spawn")
    meet = context.Barrier(3)
    parts = [
        [make_entry(config={"BM": n, "BN": part}, time_us=1.0 + n) for n in range(1, 31)]
        for part in range(1, 4)
    ]
    processes = [
        context.Process(target=_put_many, args=(store.path, freshness, part, meet))
        for part in parts
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 3
    assert len(store.entries()) == 3 * 30


def test_many_threads_share_one_object(store, make_entry):
    entries = [make_entry(config={"BM": n, "BN": 1}) for n in range(1, 41)]

    def put(part):
        for entry in part:
            store.put(entry)
        store.close()

    threads = [threading.Thread(target=put, args=(entries[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.entries()) == 40


def _die_in_the_middle(path, freshness):
    store = Store(path, freshness)
    with store._transaction() as connection:
        connection.execute("DELETE FROM trials")
        os._exit(9)


def test_a_process_that_dies_leaves_the_store_whole(store, make_entry, freshness):
    store.put(make_entry())
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_die_in_the_middle, args=(store.path, freshness))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert len(store.entries()) == 1
    assert store.put(make_entry(epilogue="relu")) == 1
