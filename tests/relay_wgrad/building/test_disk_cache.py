"""What compilers made is kept: whole, in a folder of limited size, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay_wgrad.building.disk_cache import MOST, DiskCache, described, key_of, most_bytes


def environ(folder: Path, **more: str) -> dict[str, str]:
    return {"RELAY_WGRAD_CACHE": str(folder), **more}


def test_what_was_kept_is_found(tmp_path: Path) -> None:
    key = key_of(["text", b"\0content"])
    kept = DiskCache(environ(tmp_path))
    assert kept.get(key) is None
    kept.put(key, b"machine code")
    assert DiskCache(environ(tmp_path)).get(key) == b"machine code"
    assert [path.name for path in (tmp_path / "built").iterdir()] == [key]
    assert (tmp_path / "built").stat().st_mode & 0o777 == 0o700


def test_facts_are_told_from_their_neighbours() -> None:
    facts = [["ab"], ["a", "b"], ["b", "a"], ["", "ab"], ["ab", ""], ["1\na"], [b"a", "1\n"]]
    assert len({key_of(each) for each in facts}) == len(facts)
    assert key_of(["a"]) == key_of([b"a"])


@pytest.mark.parametrize("how", ["cut", "changed", "empty", "a link", "another's content"])
def test_a_damaged_one_is_not_there(how: str, tmp_path: Path) -> None:
    kept, key, other = DiskCache(environ(tmp_path)), key_of(["a"]), key_of(["b"])
    kept.put(key, b"machine code")
    path = tmp_path / "built" / key
    content = path.read_bytes()
    if how == "a link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes({
            "cut": content[:-1], "changed": b"M" + content[1:], "empty": b"",
            "another's content": b"x" * len(content),
        }[how])  # fmt: skip
    assert kept.get(key) is None
    kept.put(key, b"anew")
    assert kept.get(key) == b"anew"
    assert kept.get(other) is None
    if how == "a link":
        assert (tmp_path / "elsewhere").read_bytes() == content


def test_those_that_nobody_used_for_longest_go(tmp_path: Path) -> None:
    kept = DiskCache(environ(tmp_path, **{MOST: "1"}))
    keys = [key_of([str(i)]) for i in range(4)]
    for age, key in enumerate(keys[:3]):
        kept.put(key, b"x" * 300_000)
        os.utime(tmp_path / "built" / key, (age, age))
    assert kept.get(keys[0]) is not None  # used now
    kept.put(keys[3], b"x" * 300_000)
    assert [kept.get(key) is not None for key in keys] == [True, False, True, True]
    kept.put(keys[1], b"x" * 2_000_000)  # more than all together may be
    assert [kept.get(key) is not None for key in keys] == [True, False, True, True]


def test_nothing_is_kept_where_it_is_not_wanted(tmp_path: Path) -> None:
    key = key_of(["a"])
    DiskCache(environ(tmp_path)).put(key, b"code")
    off = DiskCache(environ(tmp_path, **{MOST: "0"}))
    assert off.get(key) is None
    off.put(key_of(["b"]), b"code")
    assert len(list((tmp_path / "built").iterdir())) == 1


def test_the_limit_is_a_whole_number() -> None:
    assert most_bytes({}) == 2 << 30
    assert most_bytes({MOST: "5"}) == 5 << 20
    for wrong in ("-1", "1.5", "many", "²"):
        with pytest.raises(ValueError, match=f"{MOST} must be .*, got '{wrong}'"):
            most_bytes({MOST: wrong})


def test_users_are_told_where_it_is(tmp_path: Path) -> None:
    nothing = described(environ(tmp_path))
    assert nothing.startswith(f"{tmp_path / 'built'}: 0.0 MiB, at most 2048 ({MOST})")
    assert not (tmp_path / "built").exists()
    DiskCache(environ(tmp_path)).put(key_of(["a"]), b"x" * (3 << 20))
    assert ": 3.0 MiB, nothing more is kept" in described(environ(tmp_path, **{MOST: "0"}))
    assert described(environ(tmp_path, **{MOST: "x"})).startswith(f"{MOST} must be")


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    (tmp_path / "built").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="is not kept.*must be yours alone"):
        kept = DiskCache(environ(tmp_path))
    kept.put(key_of(["a"]), b"code")
    assert kept.get(key_of(["a"])) is None
    assert not list((tmp_path / "built").iterdir())


_AT_ONCE = """
import sys, random, resource
from relay_wgrad.building.disk_cache import DiskCache, key_of
seed = int(sys.argv[1])
chosen, kept = random.Random(seed), DiskCache()
print("begun", flush=True)
for turn in range(int(sys.argv[2])):
    name = str(chosen.randrange(6))
    content = name.encode() * (1 + int(name) * 40_000)
    found = kept.get(key_of([name]))
    assert found in (None, content), (name, len(found))
    if found is None or chosen.random() < 0.5:
        kept.put(key_of([name]), content)
"""


@pytest.mark.longer("starts processes of TVM")
def test_processes_at_once_of_which_some_are_killed(tmp_path: Path) -> None:
    """Whatever is found is whole, and what the killed ones left behind goes."""
    facts = {**os.environ, **environ(tmp_path)}

    def process(seed: int, turns: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _AT_ONCE, str(seed), str(turns)]
        made = subprocess.Popen(command, env=facts, stdout=subprocess.PIPE, text=True)
        assert made.stdout is not None
        assert made.stdout.readline() == "begun\n"
        return made

    killed = [process(seed, 10**6) for seed in range(3)]
    whole = [process(seed, 150) for seed in (3, 4)]
    for other in killed:
        other.kill()
        other.communicate()
    for other in whole:
        other.communicate()
        assert other.returncode == 0
    after = process(5, 60)
    after.communicate()
    assert after.returncode == 0
    names = {key_of([str(i)]) for i in range(6)}
    assert {path.name for path in (tmp_path / "built").iterdir()} <= names


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """It is said once, and what is made is used, and not kept."""
    script = (
        "import resource, warnings\n"
        "from relay_wgrad.building.disk_cache import DiskCache, key_of\n"
        "kept = DiskCache()\n"
        "kept.put(key_of(['a']), b'before')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    for name in 'bc':\n"
        "        kept.put(key_of([name]), b'x' * 5000)\n"
        "print(len(said), kept.get(key_of(['b'])), DiskCache().get(key_of(['a'])))\n"
    )
    facts = {**os.environ, **environ(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=facts, capture_output=True, text=True)
    assert done.stdout == "1 None b'before'\n", done.stderr
    assert [path.name for path in (tmp_path / "built").iterdir()] == [key_of(["a"])]


def test_a_folder_that_may_not_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root's home for another user: `env` says so, and goes on."""

    def refuses(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuses)
    text = f"{tmp_path / 'built'}: Permission denied; set RELAY_WGRAD_CACHE to"
    assert described(environ(tmp_path)).startswith(text)
