"""`write_whole`: all of a file or what was there before."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemmkit.whole_files import write_whole


def test_a_file_is_replaced_with_its_mode_and_behind_a_link(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"before")
    path.chmod(0o600)
    link.symlink_to(path)
    write_whole(link, b"after")
    assert link.is_symlink()
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o600
    longest = tmp_path / ("ä" * 127)
    write_whole(longest, b"new")
    assert longest.read_bytes() == b"new"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "link", longest.name]


@pytest.mark.parametrize("before", [None, b"before"])
def test_what_fails_on_the_way_leaves_what_was_there(tmp_path, monkeypatch, before):
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"after")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == (
        [] if before is None else [before]
    )


def test_a_pipe_and_a_file_in_a_closed_folder_are_written_in_place(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    opened = Path.open

    def refuse(path, mode="r", *rest, **options):
        if "x" in mode:
            raise PermissionError(13, "Permission denied")
        return opened(path, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", refuse)
    path = tmp_path / "file"
    path.write_bytes(b"a longer one")
    write_whole(path, b"after")
    assert path.read_bytes() == b"after"
    with pytest.raises(PermissionError):
        write_whole(tmp_path / "new", b"after")


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no /dev/fd here")
def test_an_open_pipe_and_a_removed_file_are_written_by_their_descriptors(tmp_path):
    reader, writer = os.pipe()
    write_whole(Path(f"/dev/fd/{writer}"), b"through")
    os.close(writer)
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    removed = tmp_path / "removed"
    with removed.open("w+b") as file:
        removed.unlink()
        write_whole(Path(f"/dev/fd/{file.fileno()}"), b"nowhere")
        assert file.read() == b"nowhere"
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout here")
def test_standard_output_to_a_file_keeps_what_else_is_written_there(tmp_path):
    path = tmp_path / "file"
    code = (
        "from pathlib import Path; from gemmkit.whole_files import write_whole; print('before')\n"
        "write_whole(Path('/dev/stdout'), b'page\\n'); print('after')"
    )
    with path.open("w") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, timeout=60)
    assert path.read_text().split() == ["before", "page", "after"]


def test_links_that_lead_to_each_other_stay(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(one, b"data")
    assert one.is_symlink()
    assert other.is_symlink()
    absent = tmp_path / "absent"
    other.unlink()
    other.symlink_to(absent)
    write_whole(one, b"data")
    assert one.is_symlink()
    assert absent.read_bytes() == b"data"


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EPERM, errno.EROFS])
def test_a_file_that_cannot_be_replaced_is_written_in_place(tmp_path, monkeypatch, number):
    path = tmp_path / "mounted"
    path.write_bytes(b"a longer one")

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", refuse)
    write_whole(path, b"after")
    assert path.read_bytes() == b"after"
    with pytest.raises(OSError, match=os.strerror(number)):
        write_whole(tmp_path / "new", b"after")
    assert [each.name for each in tmp_path.iterdir()] == ["mounted"]


def test_a_protected_file_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    path.chmod(0o400)
    opened = os.access(path, os.W_OK)
    monkeypatch.setattr(os, "access", lambda *_: False)
    if opened:  # As root, which may write to it: the file itself shows that it is the same one.
        number = path.stat().st_ino
        write_whole(path, b"after")
        assert path.stat().st_ino == number
    else:
        with pytest.raises(PermissionError):
            write_whole(path, b"after")
        assert path.read_bytes() == b"before"
