"""`write_whole`: all of a file or what was there before."""

from __future__ import annotations

import os
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
