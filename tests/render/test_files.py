import contextlib
import os
import stat
import threading

import pytest

from gradprobe.model.writing import open_in_place, replace_file, replacing


def test_what_cannot_be_written_or_made_leaves_what_was_there(tmp_path):
    file = tmp_path / "out"
    file.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        replace_file(file, "x" * 100_000 + "\ud800")
    with contextlib.suppress(ZeroDivisionError), replacing(file) as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    for place in ("no/such", "out/x", "."):
        with pytest.raises(OSError, match="Errno"):
            replace_file(tmp_path / place, "x")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"out": "before"}


def test_a_new_file_has_the_permissions_of_any_and_an_old_one_keeps_its_own(tmp_path):
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "new", "")
    finally:
        os.umask(before)
    (tmp_path / "old").write_text("")
    (tmp_path / "old").chmod(0o604)
    replace_file(tmp_path / "old", "x")
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "old")}
    assert modes == {"new": 0o640, "old": 0o604}


@pytest.mark.parametrize("leads_to", ["real", "nowhere", "pipe", "folder", "link"])
def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path, leads_to):
    (tmp_path / "real").write_text("before")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(leads_to)
    replace_file(tmp_path / "link", "x")
    assert (tmp_path / "link").read_text() == "x"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["folder", "link", "pipe", "real"]


def test_what_is_added_to_is_no_link(tmp_path):
    (tmp_path / "real").write_text("before")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OSError, match="symbolic link"):
        open_in_place(tmp_path / "link", "ab")
    with (
        open_in_place(tmp_path / "real", "ab") as stream,
        open_in_place(f"/dev/fd/{stream.fileno()}", "ab") as same,
    ):
        same.write(b" and after")
    assert (tmp_path / "real").read_text() == "before and after"


def test_a_pipe_a_device_and_an_open_file_are_written_into(tmp_path):
    os.mkfifo(tmp_path / "named")
    reading, writing = os.pipe()
    seen = []
    reader = threading.Thread(target=lambda: seen.append((tmp_path / "named").read_text()))
    reader.start()
    replace_file(tmp_path / "named", "through")
    reader.join(10)
    replace_file(f"/dev/fd/{writing}", "through too")
    os.close(writing)
    with os.fdopen(reading) as stream:
        seen.append(stream.read())
    assert seen == ["through", "through too"]
    assert stat.S_ISFIFO((tmp_path / "named").stat().st_mode)
    replace_file("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with (tmp_path / "out").open("w") as stream:
        stream.write("before\n")
        stream.flush()
        replace_file(f"/dev/fd/{stream.fileno()}", "after\n")
    assert (tmp_path / "out").read_text() == "before\nafter\n"
