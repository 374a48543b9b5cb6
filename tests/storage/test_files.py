"""Atomic writing: whole or absent under its name, whatever fails, is killed or runs beside."""

from __future__ import annotations

import errno
import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from warm_processes import WarmProcesses

from lexforge.storage import files, timings
from lexforge.storage.files import (
    check_new,
    finished_name,
    new_directory,
    remove_leftovers,
    write_file,
    write_text,
)
from lexforge.storage.manifest import read_manifest, write_manifest
from lexforge.storage.tensors import write_tensors

WRITER = f"12-{'ab' * 8}"  # of a name beside: process and random digits


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make_old(path: Path) -> None:
    """Let it seem that nothing has been written to a file or a folder for two hours."""
    for place in (path, *path.rglob("*")):
        os.utime(place, (time.time() - 7200,) * 2, follow_symlinks=False)


def fill(folder: Path) -> None:
    (folder / "a").write_bytes(b"1")


def test_a_file_and_a_folder_have_their_names_only_when_whole(tmp_path: Path) -> None:
    """While they are written they lie beside, under a name that says so."""

    def write(beside: Path) -> None:
        beside.write_bytes(b"half")
        beside.with_name(".tmpOfALibrary").touch()  # which nothing but its folder tells from a user's file
        assert names(tmp_path) == ["file", beside.parent.name]
        assert finished_name(beside.parent.name) == "file"
        assert (tmp_path / "file").read_bytes() == b"old"

    write_file(tmp_path / "file", b"old")
    write_file(tmp_path / "file", write)
    assert (tmp_path / "file").read_bytes() == b"half"
    assert names(tmp_path) == ["file"]
    with new_directory(tmp_path / "new" / "folder") as beside:
        fill(beside)
        assert names(tmp_path / "new") == [beside.name]
        assert finished_name(beside.name) == "folder"
    assert names(tmp_path / "new") == ["folder"]
    assert names(tmp_path / "new" / "folder") == ["a"]


def test_text_is_compressed_by_its_name_and_replaced_whole(tmp_path: Path) -> None:
    """A reader that has the old file open reads it to its end; equal texts are equal files."""
    for name in ("plain", "packed.gz"):
        write_text(tmp_path / name, "old")
        with (tmp_path / name).open("rb") as old:
            write_text(str(tmp_path / name), "é\n")
            assert old.read() == (b"old" if name == "plain" else gzip.compress(b"old", mtime=0))
    assert names(tmp_path) == ["packed.gz", "plain"]
    assert (tmp_path / "plain").read_bytes() == "é\n".encode()
    assert gzip.decompress((tmp_path / "packed.gz").read_bytes()) == "é\n".encode()


def test_text_goes_through_links_and_pipes(tmp_path: Path) -> None:
    """`--run /dev/stdout` prints the run, and `--json` may name a link to a place elsewhere."""
    (tmp_path / "place").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "place")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "place").read_text() == "new"
    code = "from pathlib import Path; from lexforge.storage.files import check_output_file, write_text\n"
    code += "check_output_file(Path('/dev/stdout')); write_text('/dev/stdout', 'text')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("text", "")
    assert names(tmp_path) == ["link", "place"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, OSError(errno.ENOSPC, "full"), OSError(errno.ENOENT, "")]
)
def test_what_fails_leaves_nothing(error: BaseException, tmp_path: Path) -> None:
    """A full disk must not be filled further by what was left; an error that stays is not tried for ever."""

    def fail(beside: Path) -> None:
        beside.write_bytes(b"half")
        raise error

    write_file(tmp_path / "file", b"old")
    expected = type(error) if isinstance(error, OSError) else error
    with pytest.raises(expected):
        write_file(tmp_path / "file", fail)
    with pytest.raises(expected), new_directory(tmp_path / "folder") as beside:
        fail(beside / "a")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may have more than 1000 bytes, which ends in the errors of a full disk."""
    resource = pytest.importorskip("resource", reason="only POSIX systems limit a process")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _fill_with(write: Callable[[Path], object]) -> Callable[[Path], object]:
    def fill(place: Path) -> None:
        with new_directory(place) as beside:
            write(beside / "a")

    return fill


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda place: write_file(place, b"x" * 2000), "'FOLDER/place'"),
        (lambda place: write_file(place, lambda beside: beside.write_text("x" * 2000)), "'FOLDER/place'"),
        (lambda place: write_tensors(place, "test", {}, {"a": torch.ones(500)}), "large: 'FOLDER/place'"),
        (lambda place: write_file(place / "absent" / "place", b"x"), "'FOLDER/place/absent/place'"),
        (lambda place: write_text(place, "x" * 2000), "'FOLDER/place'"),
        (_fill_with(lambda path: path.write_bytes(b"x" * 2000)), "'FOLDER/place'"),
        (_fill_with(lambda path: np.save(path, np.zeros(9000))), "while FOLDER/place was written"),
        (_fill_with(lambda path: write_file(path, b"x" * 2000)), "'FOLDER/place/a'"),
    ],
)
def test_the_error_of_a_full_disk_names_the_place(write, named: str, tmp_path: Path, full_disk: None) -> None:
    """Python names no file where writing fails, and a user has several disks; a name beside helps nobody."""
    with pytest.raises(OSError, match=named.replace("FOLDER", str(tmp_path))):
        write(tmp_path / "place")
    assert names(tmp_path) == []


WRITES_UNTIL_KILLED = """
import sys
from pathlib import Path
from lexforge.storage.files import new_directory, write_file
folder, what = Path(sys.argv[1]), sys.argv[2]
while True:
    for number in range(5):
        if what == "file":
            write_file(folder / str(number), b"x" * 3_000_000)
        else:
            with new_directory(folder / str(number), keep_existing=True) as beside:
                for name in "ab":
                    (beside / name).write_bytes(b"x" * 1_000_000)
"""


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_killed_process_leaves_whole_things_and_leftovers(
    what: str, warm: WarmProcesses, tmp_path: Path
) -> None:
    """SIGKILL at any moment, with two processes writing the same names."""
    processes = warm.start("-c", [WRITES_UNTIL_KILLED, tmp_path, what], ranks=2)
    deadline = time.monotonic() + 120
    try:
        while "4" not in names(tmp_path):
            assert time.monotonic() < deadline, warm.log.read_text()
            time.sleep(0.01)
    finally:
        for process in processes:
            os.kill(process, signal.SIGKILL)
        ended = warm.end()
    assert ended == [-signal.SIGKILL] * 2, warm.log.read_text()
    whole = [path for path in tmp_path.iterdir() if finished_name(path.name) == path.name]
    assert [path.name for path in sorted(whole)] == ["0", "1", "2", "3", "4"]
    for path in whole:
        sizes = [part.stat().st_size for part in ([path] if what == "file" else sorted(path.iterdir()))]
        assert sizes == ([3_000_000] if what == "file" else [1_000_000, 1_000_000])
    for path in tmp_path.iterdir():
        make_old(path)
    remove_leftovers(tmp_path, r"\d")
    assert names(tmp_path) == ["0", "1", "2", "3", "4"]


def test_only_leftovers_of_the_name_and_the_age_asked_for_are_removed(tmp_path: Path) -> None:
    """A folder may hold other people's files, and files that are being written now."""
    old, young = f"a.{WRITER}.partial", f"a.34{WRITER[2:]}.partial"
    others = [f"b.{WRITER}.partial", "a.0.partial", "a.partial", "a"]
    for name in (old, young, *others):
        (tmp_path / name).touch()
        if name != young:
            make_old(tmp_path / name)
    folder = tmp_path / f"a.56{WRITER[2:]}.partial"  # changed inside a moment ago
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").touch()
    for path in (folder, folder / "inner"):
        os.utime(path, (time.time() - 7200,) * 2)
    remove_leftovers(tmp_path, "a")
    assert names(tmp_path) == sorted([young, folder.name, *others])


BEGIN = """
import os, signal, sys, time
from pathlib import Path
from lexforge.storage.files import new_directory
with new_directory(Path(sys.argv[1]) / "export") as beside:
    (beside / "file").touch()
    print(beside.name, flush=True)
    if sys.argv[2] == "dies":
        os._exit(1)
    time.sleep(300)
"""


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="only Linux tells which process is meant")
def test_what_a_dead_process_left_goes_at_once_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    """A killed export left as many bytes as a whole one, and the next export left them for an hour."""
    command = [sys.executable, "-c", BEGIN, str(tmp_path)]
    subprocess.run([*command, "dies"], check=False, stdout=subprocess.DEVNULL)
    assert len(names(tmp_path)) == 1
    with subprocess.Popen([*command, "lives"], stdout=subprocess.PIPE, text=True) as living:
        try:
            assert living.stdout is not None
            written = living.stdout.readline().strip()
            with new_directory(tmp_path / "export") as beside:
                assert names(tmp_path) == sorted([written, beside.name])
                fill(beside)
        finally:
            living.kill()
    assert names(tmp_path) == ["export", written]


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    """Removing through a link would delete outside of the folder."""
    (tmp_path / "kept").mkdir()
    fill(tmp_path / "kept")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / f"a.{WRITER}.partial").symlink_to(tmp_path / "kept")
    make_old(tmp_path / "here" / f"a.{WRITER}.partial")
    remove_leftovers(tmp_path / "here", "a")
    assert (names(tmp_path / "here"), names(tmp_path / "kept")) == ([], ["a"])


def _write_while_another_process_is_faster(place: Path) -> None:
    with new_directory(place):
        place.mkdir()
        (place / "theirs").touch()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Saving over an index that is memory-mapped would pull the file from under it."""
    with new_directory(tmp_path / "index") as beside:
        fill(beside)
    (tmp_path / "file").touch()
    for place in ("index", "file"):
        with pytest.raises(FileExistsError, match="not an empty directory"):
            check_new(tmp_path / place)
        with pytest.raises(FileExistsError, match="not an empty directory"), new_directory(tmp_path / place):
            pytest.fail("the work must not begin")
    with pytest.raises(FileExistsError, match="is a mount point"):
        check_new("/")
    with pytest.raises(FileExistsError, match="race"):
        _write_while_another_process_is_faster(tmp_path / "race")
    with new_directory(tmp_path / "race", keep_existing=True) as beside:
        fill(beside)
    assert names(tmp_path / "race") == ["theirs"]
    assert names(tmp_path) == ["file", "index", "race"]


def test_an_empty_folder_is_filled_and_keeps_its_mode(tmp_path: Path) -> None:
    """The user may have made it, private, and named it by a link."""
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "private")
    with new_directory(tmp_path / "link") as beside:
        fill(beside)
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "private") == ["a"]
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


def test_a_durable_name_is_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint whose name does not survive a power cut is lost with all its synced files."""
    (tmp_path / "run").mkdir()
    (tmp_path / "staged").mkdir()
    synced: list[tuple[int, list[str]]] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append((os.fstat(file).st_ino, names(tmp_path / "run")))
    )
    files.publish(tmp_path / "staged", tmp_path / "run" / "place", durable=True)
    assert synced == [((tmp_path / "run").stat().st_ino, ["place"])]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the calls of Python fail as they do on Windows, which is simulated here and was not at hand."""
    real_open, real_replace, real_fsync = os.open, os.replace, os.fsync
    writable = set()

    def opened(path, flags, *arguments, **options) -> int:
        if os.path.isdir(path) and not options:  # `shutil.rmtree` opens folders by `dir_fd`, on Linux only
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        file = real_open(path, flags, *arguments, **options)
        (writable.add if flags & os.O_RDWR else writable.discard)(file)
        return file

    def fsync(file: int) -> None:
        if file not in writable:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_fsync(file)

    def replaced(source, target) -> None:
        if os.path.isdir(target):
            raise PermissionError(errno.EACCES, "Access is denied", str(source), 5, str(target))
        real_replace(source, target)

    def is_mount(path: Path) -> bool:
        raise NotImplementedError("Path.is_mount() is unsupported on this system")

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(Path, "is_mount", is_mount)


def test_files_and_folders_are_written_as_windows_allows(tmp_path: Path, windows: None) -> None:
    """It opens no folder, flushes no file that was opened to read, and moves no folder over another one."""
    write_file(tmp_path / "file", b"old")
    write_file(tmp_path / "file", b"new")
    (tmp_path / "staged").mkdir()
    fill(tmp_path / "staged")
    write_manifest(tmp_path / "staged", "test", {}, durable=True)
    (tmp_path / "place").mkdir()
    files.publish(tmp_path / "staged", tmp_path / "place", durable=True)
    assert read_manifest(tmp_path / "place", "test") == {}
    with pytest.raises(FileExistsError, match="race"):
        _write_while_another_process_is_faster(tmp_path / "race")
    with new_directory(tmp_path / "race", keep_existing=True) as beside:
        fill(beside)
    assert names(tmp_path / "race") == ["theirs"]
    assert names(tmp_path) == ["file", "place", "race"]


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user with a small home directory moves every cache by one variable."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.cache_folder() == tmp_path / "lexforge"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert files.cache_folder("tables") == tmp_path / "home" / ".cache" / "lexforge" / "tables"


def test_a_place_where_nothing_can_be_written_is_refused_before_any_work() -> None:
    """A read-only disk shows after hours otherwise; /proc takes no file, not even from root."""
    for check in (files.check_output_file, check_new):
        with pytest.raises(OSError, match=r"no file can be written: .*'/proc'"):
            check(Path("/proc/out.json"))


def test_a_cache_that_cannot_be_written_is_moved_by_the_variable_that_the_error_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A read-only home stops training at its teacher's cache; the user must learn what to do."""
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", Path("/proc")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        with pytest.raises(OSError, match=str(place)) as caught:
            files.cache_folder("tables")
        assert "XDG_CACHE_HOME" in caught.value.__notes__[0]


def test_a_user_without_a_home_directory_is_told_where_to_put_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container may run under a user id that has no name, without HOME; what is only kept is no reason to
    end a training."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(FileNotFoundError, match="no home directory") as caught:
        files.cache_folder("tables")
    assert "XDG_CACHE_HOME" in caught.value.__notes__[0]
    monkeypatch.setattr(timings, "_TIMINGS", {})
    assert timings.timed("a way", lambda: {"one": 1.0}) == {"one": 1.0}
