"""The cache folder: damage is a miss, a folder that others can write to is not used, and it is held to its bound."""

import os
import stat
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from gridpact import cache, cli


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GRIDPACT_KERNEL_CACHE", raising=False)
    forget()
    yield tmp_path
    forget()


def forget():
    cache._trusted.cache_clear()
    cache._say.cache_clear()


def test_entry_comes_back_whole():
    assert cache.read("device", "key") is None
    cache.write("device", "key", b"content" * 1000)
    assert cache.read("device", "key") == b"content" * 1000
    assert cache.read("device", "other") is None


def test_folders_are_private(home):
    folder = cache.folder("device")
    assert folder == home / "gridpact" / "device"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def test_every_bit_flip_and_every_length_is_a_miss_and_is_removed():
    cache.write("device", "key", bytes(range(40)))
    path = cache.folder("device") / "key"
    raw = path.read_bytes()
    spoiled = [raw[:i] + bytes([raw[i] ^ 1 << i % 8]) + raw[i + 1 :] for i in range(len(raw))]
    spoiled += [raw[:i] for i in range(len(raw))] + [raw + b"x", b"x" + raw, raw + raw, b"something else"]
    for content in spoiled:
        path.write_bytes(content)
        assert cache.read("device", "key") is None
        assert not path.exists()
    path.write_bytes(raw)
    assert cache.read("device", "key") == bytes(range(40))


def test_entry_under_another_name_is_a_miss():
    cache.write("device", "key", b"content")
    os.rename(cache.folder("device") / "key", cache.folder("device") / "renamed")
    assert cache.read("device", "renamed") is None


def test_no_temporary_file_is_left():
    cache.write("device", "key", b"content")
    assert [path.name for path in cache.folder("device").iterdir()] == ["key"]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_folder_that_others_can_write_to_is_not_used(home, mode):
    (home / "gridpact").mkdir()
    (home / "gridpact").chmod(mode)
    with pytest.warns(RuntimeWarning, match=r"other users can write to it.*\[KEY-3\]"):
        folder = cache.folder("device")
    assert home not in folder.parents
    cache.write("device", "key", b"content")
    assert cache.read("device", "key") == b"content"
    assert list((home / "gridpact").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_folder_of_a_kind_that_others_can_write_to_is_not_used(home, mode):
    cache.folder("kernels").chmod(mode)
    forget()
    with pytest.warns(RuntimeWarning, match=r"other users can write to it.*\[KEY-3\]"):
        cache.write("kernels", "key", b"content")
    assert list((home / "gridpact" / "kernels").iterdir()) == []
    assert cache.folder("device") == home / "gridpact" / "device"


def test_folder_that_is_not_used_is_named_once(home, recwarn):
    (home / "gridpact").mkdir()
    (home / "gridpact").chmod(0o777)
    for kind in cache.KINDS * 2:
        cache.write(kind, "key", b"content")
        assert cache.read(kind, "key") == b"content"
    assert len(recwarn) == 1


def test_home_that_is_no_folder_is_not_used(home):
    (home / "gridpact").write_text("a file")
    with pytest.warns(RuntimeWarning, match="not used"):
        assert home not in cache.folder("device").parents


# -- what the file system does


def test_folder_that_was_removed_is_made_again():
    cache.write("device", "key", b"content")
    for path in (cache.folder("device") / "key", cache.folder("device"), cache.folder("device").parent):
        path.unlink() if path.is_file() else path.rmdir()
    cache.write("device", "key", b"content")
    assert cache.read("device", "key") == b"content"


@pytest.mark.parametrize("name", ["ESTALE", "EBUSY", "ENOSPC", "EROFS", "EIO", "EDQUOT"])
@pytest.mark.parametrize("call", ["open", "replace", "unlink", "utime", "scandir", "mkdir"])
def test_error_of_the_file_system_is_a_miss_or_no_entry(monkeypatch, name, call):
    cache.write("device", "0" * 64, b"content")
    cache.write("device", "1" * 64, b"content")
    (cache.folder("device") / ("1" * 64)).write_bytes(b"damaged")
    error = OSError(getattr(__import__("errno"), name), name)

    def fails(*args, **kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        if call == "open":
            patch.setattr(cache.Path, "read_bytes", fails)
        if call == "unlink":
            patch.setattr(cache.Path, "unlink", fails)
        assert cache.read("device", "0" * 64) in (None, b"content")
        assert cache.read("device", "1" * 64) is None
        cache.write("device", "2" * 64, b"content")
        cache.prune(cache.folder("device").parent, 1)
    cache.write("device", "2" * 64, b"content")
    assert cache.read("device", "2" * 64) == b"content"


def test_full_disk_leaves_no_file(home):
    program = (
        "import resource, signal, sys; from gridpact import cache\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "cache.write('device', 'small', b'x' * 100)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "cache.write('device', 'large', b'x' * 1_000_000)\n"
        "print(cache.read('device', 'large'), len(cache.read('device', 'small')))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == "None 100\n", ran.stderr
    assert [path.name for path in (home / "gridpact" / "device").iterdir()] == ["small"]


# -- GRIDPACT_KERNEL_CACHE


def test_compiled_kernels_may_live_elsewhere(home, monkeypatch):
    monkeypatch.setenv("GRIDPACT_KERNEL_CACHE", str(home / "elsewhere"))
    cache.write("kernels", "key", b"content")
    assert (home / "elsewhere" / "kernels" / "key").exists()
    assert cache.read("kernels", "key") == b"content"
    assert cache.folder("device") == home / "gridpact" / "device"
    assert cache.folders() == {home / "gridpact": ("native", "device"), home / "elsewhere": ("kernels",)}


@pytest.mark.parametrize("value", ["off", "relative/folder", "OFF", "0"])
def test_compiled_kernels_may_not_be_kept(home, monkeypatch, value, recwarn):
    monkeypatch.setenv("GRIDPACT_KERNEL_CACHE", value)
    cache.write("kernels", "key", b"content")
    assert cache.read("kernels", "key") is None
    assert list(cache.folders()) == [home / "gridpact"]
    assert [str(warning.message) for warning in recwarn] == (
        []
        if value == "off"
        else [
            f"GRIDPACT_KERNEL_CACHE: expected an absolute folder or 'off', got {value!r} (str). "
            "No compiled kernel is kept."
        ]
    )


# -- the bound


def fill(count, size=1000):
    """Write entries of which the first was not used for longest; give their paths."""
    paths = []
    for i in range(count):
        cache.write(cache.KINDS[1 + i % 2], f"{i:064x}", bytes(size))
        paths.append(cache.folder(cache.KINDS[1 + i % 2]) / f"{i:064x}")
        os.utime(paths[-1], (1000 + i, 1000 + i))
    return paths


def test_entries_over_the_bound_go_those_first_that_were_not_used_for_longest(home):
    paths = fill(20)
    size = paths[0].stat().st_size
    cache.read("device", paths[0].name)
    removed = cache.prune(home / "gridpact", 19 * size)
    assert [entry.path for entry in removed] == paths[1:6]
    assert [path.exists() for path in paths] == [True] + [False] * 5 + [True] * 14
    assert cache.prune(home / "gridpact", 19 * size) == []


def test_writes_look_at_the_bound(home, monkeypatch):
    monkeypatch.setattr(cache.prune, "__defaults__", (50_000,))
    fill(200, 5000)
    assert 0 < sum(entry.size for entry in cache.entries(home / "gridpact")) < 50_000 + 16 * 6000


def test_half_written_files_go_after_an_hour_and_other_files_stay(home):
    folder = cache.folder("kernels")
    now = time.time()
    names = {".gridpact-old": 3700, ".gridpact-new": 3500, "my_kernel.py": 10**6, "new": 10**6}
    for name, age in names.items():
        (folder / name).write_text("text")
        os.utime(folder / name, (now - age, now - age))
    assert [entry.path.name for entry in cache.prune(home / "gridpact")] == [".gridpact-old"]
    assert [entry.path.name for entry in cache.prune(home / "gridpact", 0)] == [".gridpact-new"]
    assert sorted(path.name for path in folder.iterdir()) == ["my_kernel.py", "new"]


# -- processes that are killed

_KILLED_WRITERS = """
import os, random, signal, time
from gridpact import cache

def write():
    for i in range(10**9):
        key = f"{i % 50:064x}"
        cache.write("kernels", key, key.encode() * (1 + i % 3000))

for seed in range(50):
    children = []
    for _ in range(4):
        child = os.fork()
        if not child:
            write()
        children.append(child)
    for child in children:
        time.sleep(random.Random(seed).random() * 0.02)
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
"""


def test_200_killed_writers_leave_no_wrong_entry(home):
    subprocess.run([sys.executable, "-c", _KILLED_WRITERS], check=True)
    left = 0
    for entry in cache.entries(home / "gridpact"):
        if entry.path.name.startswith(cache.HALF_WRITTEN):
            left += 1
            os.utime(entry.path, (0, 0))
            continue
        content = cache.read("kernels", entry.path.name)
        assert content, entry
        assert content == entry.path.name.encode() * (len(content) // 64)
    assert left, "no writer was hit in the middle"
    assert len(cache.prune(home / "gridpact")) == left
    assert not list(cache.folder("kernels").glob(f"{cache.HALF_WRITTEN}*"))


# -- the command line


def run(*arguments):
    return CliRunner().invoke(cli.app, ["cache", *arguments])


def test_show_tells_folders_kinds_and_bound(home):
    fill(10)
    shown = run("show")
    assert shown.exit_code == 0
    assert str(home / "gridpact") in shown.output.replace("\n", "")
    assert "of at most 1024 MiB" in shown.output
    rows = [line.split() for line in shown.output.splitlines()]
    assert ["native", "0", "0.0", "KiB"] in rows
    assert ["kernels", "5", "5.1", "KiB"] in rows


def test_show_says_that_kernels_are_not_kept(monkeypatch):
    monkeypatch.setenv("GRIDPACT_KERNEL_CACHE", "off")
    assert "No compiled kernel is kept" in run("show").output


def test_verify_names_what_is_damaged():
    paths = fill(10)
    assert run("verify").output == "10 entries, 0 damaged\n"
    paths[3].write_bytes(paths[3].read_bytes()[:-1])
    found = run("verify")
    assert found.exit_code == 1
    assert found.output == f"damaged {paths[3]}\n10 entries, 1 damaged\n"
    assert paths[3].exists()
    assert run("verify", "--remove").output.endswith("10 entries, 1 damaged, removed\n")
    assert not paths[3].exists()
    assert run("verify").exit_code == 0


def test_prune_removes_what_is_asked_for(home):
    paths = fill(10, 2**18)
    assert run("prune").output == "0 entries removed, 0.0 KiB\n"
    assert run("prune", "--to", "1").output == "7 entries removed, 1.8 MiB\n"
    assert [path.exists() for path in paths] == [False] * 7 + [True] * 3
    assert run("prune", "--all").output.startswith("3 entries removed")
    assert not list(cache.entries(home / "gridpact"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--to", "-1"], "--to: expected a number of MiB from 0 on, got -1.0."),
        (["--to", "nan"], "--to: expected a number of MiB from 0 on, got nan."),
        (["--to", "1", "--all"], "--to and --all: expected one of them."),
    ],
)
def test_mistake_is_told_in_a_sentence(arguments, sentence):
    result = run("prune", *arguments)
    assert result.exit_code == 2
    assert result.output == f"{sentence}\n"


def test_user_without_a_home_has_no_cache(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(cache.Path, "home", homeless)
    with pytest.warns(RuntimeWarning, match=r"Could not determine home directory.*\[KEY-3\]"):
        assert cache.read("kernels", "key") is None
    cache.write("kernels", "key", b"content")
    assert not cache.keeps("kernels")
