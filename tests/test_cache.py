"""The cache folder: damage is a miss, a folder that others can write to is not used."""

import os
import stat

import pytest

from gridpact import cache


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache._trusted.cache_clear()
    yield tmp_path
    cache._trusted.cache_clear()


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


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "append", "foreign"])
def test_damaged_entry_is_a_miss(damage):
    cache.write("device", "key", bytes(range(256)))
    path = cache.folder("device") / "key"
    raw = path.read_bytes()
    spoiled = {
        "flip": raw[:100] + bytes([raw[100] ^ 1]) + raw[101:],
        "truncate": raw[:-1],
        "empty": b"",
        "append": raw + b"x",
        "foreign": b"something else",
    }[damage]
    path.write_bytes(spoiled)
    assert cache.read("device", "key") is None


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


def test_home_that_is_no_folder_is_not_used(home):
    (home / "gridpact").write_text("a file")
    with pytest.warns(RuntimeWarning, match="not used"):
        assert home not in cache.folder("device").parents
