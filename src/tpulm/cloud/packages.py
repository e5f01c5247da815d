"""What a VM installs tpulm from: uv for its platform, and for one without a way to a package index all else, too.

Fetched on the launching machine, which may be of another platform, by uv and pip: their settings, mirrors and caches hold here.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tpulm.errors import MissingExtra, TpulmError, installing

# That of TPU VMs, as `packaging` calls it in markers.
MARKERS = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}
_GLIBC = 31  # 2.31, of Ubuntu 20.04: their images have that or newer
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # the versions that are pinned are for this one


def uv(folder: Path) -> Path:
    """The program for TPU VMs: this machine's own, or one fetched into `folder`."""
    if sys.platform == MARKERS["sys_platform"] and platform.machine() == MARKERS["platform_machine"]:
        return _uv()
    (wheel,) = _download([f"uv=={metadata.version('uv')}"], folder / "uv")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        program = Path(archive.extract(name, folder))
    program.chmod(0o755)
    return program


def wheels(pins: Sequence[str], folder: Path) -> list[Path]:
    """Of all that `pins` need on a TPU VM. Raises TpulmError where one cannot be had."""
    folder.mkdir(exist_ok=True)
    (folder / "pins.txt").write_text("\n".join(pins) + "\n", encoding="utf-8")
    wanted = ["--python-platform", f"x86_64-manylinux_2_{_GLIBC}", "--python-version", _PYTHON, "--no-header", "--no-annotate"]
    resolved = _run([_uv(), "pip", "compile", "--quiet", *wanted, folder / "pins.txt"], "find the packages for the VMs")
    return _download([line for line in resolved.splitlines() if line.strip()], folder)


def interpreter(folder: Path) -> Path:
    """The folder of a CPython that runs wherever it lies (those of python-build-standalone do), of this Python's version."""
    named = f"cpython-{_PYTHON}-linux-x86_64-gnu"
    advice = "UV_PYTHON_INSTALL_MIRROR names another place to fetch it from"
    _run([_uv(), "python", "install", "--no-progress", "--no-bin", "--install-dir", folder, named], f"fetch {named}", advice)
    return next(path for path in sorted(folder.glob("cpython-*")) if not path.is_symlink())


def _uv() -> Path:
    try:
        from uv import find_uv_bin
    except ImportError as error:
        raise MissingExtra(f"launching needs uv: {installing('cloud')}") from error
    return Path(find_uv_bin())


def _download(requirements: Sequence[str], folder: Path) -> list[Path]:
    """One wheel for each, and nothing that they need."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(_GLIBC, 4, -1)] + ["manylinux2014_x86_64"]
    for_vms = ["--only-binary=:all:", "--implementation=cp", f"--python-version={_PYTHON}", *_each("--platform", platforms)]
    command = [_uv(), "tool", "run", "--quiet", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    _run([*command, *for_vms, "--dest", folder, *requirements], "fetch the packages for the VMs")
    return sorted(folder.glob("*.whl"))


def _each(option: str, values: Sequence[str]) -> list[str]:
    return [f"{option}={value}" for value in values]


def _run(command: Sequence[str | os.PathLike[str]], what: str, advice: str = "is there a network?") -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = "; ".join(line.strip() for line in done.stderr.splitlines()[-3:] if line.strip())
        raise TpulmError(f"cannot {what}: {said or f'exit code {done.returncode}'}; {advice}")
    return done.stdout
