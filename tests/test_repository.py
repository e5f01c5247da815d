"""Rules for everything that is tracked: no file names a package registry or a developer's machine, and the lock is whole."""

from __future__ import annotations

import re
import runpy
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Written in pieces, so that this file obeys its own rules.
HOSTS = ("py" + "pi.org", "python" + "hosted.org", "registry." + "npmjs", "deb." + "debian.org", "download." + "pytorch.org")
FORBIDDEN = {
    "each machine's own settings say where packages come from": "|".join(map(re.escape, HOSTS)),
    "a path of one machine means nothing on another": "(?<![A-Za-z0-9_.])/(work|root|home)/[a-z]",
}


@pytest.fixture(scope="module")
def tracked() -> dict[Path, str]:
    """Every tracked (or about to be tracked) file, by its path in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: nothing says which files are tracked")
    names = [Path(name) for name in listing.decode().split("\0") if (ROOT / name).is_file()]
    return {name: (ROOT / name).read_bytes().decode("utf-8", errors="replace") for name in names}


def test_all_that_is_tracked_is_text_or_a_picture(tracked: dict[Path, str]):
    binary = [str(path) for path, text in tracked.items() if "\0" in text and path.suffix != ".png"]
    assert not binary, f"wheels, weights and other such files do not belong here: {binary}"


@pytest.mark.parametrize("reason", FORBIDDEN)
def test_no_file_names_what_is_of_one_machine(tracked: dict[Path, str], reason: str):
    named = [f"{path}: {found[0]}…" for path, text in tracked.items() if (found := re.search(FORBIDDEN[reason], text))]
    assert not named, f"{reason}; remove: {named}"


def test_the_lock_is_hashed_and_free_of_torch():
    lock = (ROOT / "requirements.lock").read_text()
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert len(entries) > 50
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert [entry.split()[0] for entry in entries if re.match(r"(torch|tensorflow)[ =]", entry)] == []


def test_the_lock_holds_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"].values()
    wanted = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["hf"]]
    wanted += [item for group in groups for item in group if isinstance(item, str)]
    lock = (ROOT / "requirements.lock").read_text()
    locked = {name.lower() for name in re.findall(r"^([A-Za-z0-9_.-]+)==", lock, flags=re.MULTILINE)}
    names = {re.split(r"[\[<>=~! ]", item)[0].lower() for item in wanted}
    assert names - locked == set(), "run 'make lock'"


def test_nothing_says_that_a_package_index_has_tpulm(tracked: dict[Path, str]):
    """docs/installing.md and `errors.installing` say how it is installed; on the day it is published, they change."""
    false = re.compile(r"pip install (-\S+ )*['\"]?tpulm|['\"`]tpulm\[")
    shown = [path for path in tracked if path.suffix in {".md", ".ipynb", ".toml"} or path.parts[0] == "src"]
    shown.remove(Path("src/tpulm/cloud/bundle.py"))  # resolves the extras of the wheel that it has built itself
    assert [f"{path}: {found[0]}" for path in shown for found in false.finditer(tracked[path])] == []


def test_generated_pages_are_up_to_date():
    for name, text in runpy.run_path(str(ROOT / "docs/generate.py"))["pages"]().items():
        assert (ROOT / "docs" / name).read_text() == text, (
            f"docs/{name} is out of date: run '.venv/bin/python docs/generate.py'"
        )
        assert "\\" not in text.replace("\\n", ""), "shows as it is"


def test_no_two_files_of_tests_share_a_name():
    """pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
