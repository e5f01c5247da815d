"""Everything a VM needs to run tpulm, as one archive named by its SHA-256: the same sources give the same bytes.

agent.py and others   what boot.sh starts
bundle.json           which tpulm this is, and how to install it where a VM does not have it
source, pins.txt      tpulm itself, and the versions of its dependencies, as on the launching machine
uv                    the installer
wheels, interpreter   for VMs that reach no package index: the pinned packages, and a CPython
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePath
from urllib.parse import quote

from tpulm import storage
from tpulm.cloud.vm.digest import digest
from tpulm.errors import TpulmError
from tpulm.progress import SILENT, Progress
from tpulm.storage.causes import needing_extra
from tpulm.storage.paths import bucket_and_name

PROGRAMS = ("agent.py", "digest.py", "hang.py", "install.py", "probe.py", "services.py")
_EXTRAS = ("gcs",)  # of tpulm, on a TPU VM


def source_folder() -> Path:
    """The folder of the running tpulm."""
    return Path(__file__).resolve().parents[1]


def boot_script(name: str = "boot.sh") -> str:
    return (source_folder() / "cloud" / "vm" / name).read_text(encoding="utf-8")


def stage(
    folder: PurePath,
    *,
    python: str | None = None,
    offline: bool = False,
    extras: Sequence[str] = (),
    progress: Progress = SILENT,
) -> PurePath:
    """Upload the bundle into a folder of the bucket, unless it is there; returns its path. See `build`."""
    with storage.scratch_folder() as temporary:
        progress.start("packing tpulm with all it needs" if offline else "packing tpulm")
        packed = build(temporary, python=python, offline=offline, extras=extras)
        path = folder / packed.name
        info = storage.info(path)
        if info is None or info.size != packed.stat().st_size:
            progress.start(f"uploading {packed.stat().st_size / 1e6:,.0f} MB")
            storage.publish(packed, path)
    return path


def object_of(path: str | PurePath) -> str:
    """The bundle's name in Cloud Storage's API, by which boot.sh fetches it: "b/BUCKET/o/NAME", percent-encoded."""
    bucket, name = bucket_and_name(path)
    return f"b/{bucket}/o/{quote(name, safe='')}"


def build(folder: Path, *, python: str | None = None, offline: bool = False, extras: Sequence[str] = ()) -> Path:
    """Build the archive in `folder`, named by its SHA-256.

    `python`: an interpreter on the VM's image that already has this tpulm. `offline`: add an interpreter and all wheels, about
    500 MB, for VMs that reach no package index. `extras`: those of tpulm besides what every run needs. Raises MissingExtra, and
    TpulmError if something cannot be fetched.
    """
    described = {"digest": digest(source_folder()), "python": python, "python_version": _PYTHON}
    needed = pins(extras)
    with storage.explain("write to", folder):
        files: dict[str, bytes | Path] = {
            **{name: source_folder() / "cloud" / "vm" / name for name in PROGRAMS},
            "bundle.json": (json.dumps(described, indent=2, sort_keys=True) + "\n").encode(),
            "pins.txt": ("\n".join(needed) + "\n").encode(),
            **_source(),
            "uv": fetch_uv(folder),
        }
        if offline:
            files |= {f"wheels/{path.name}": path for path in fetch_wheels(needed, folder / "wheels")}
            interpreter = fetch_interpreter(folder / "python")
            files |= {
                f"interpreter/{path.relative_to(interpreter)}": path
                for path in interpreter.rglob("*")
                if (path.is_symlink() or path.is_file()) and "__pycache__" not in path.parts
            }
        archive = folder / "new.tar.gz"
        _pack(files, archive)
        return archive.rename(folder / f"{storage.sha256(archive)}.tar.gz")


def pins(extras: Sequence[str] = ()) -> list[str]:
    """ "name==version" of everything that tpulm and jax[tpu] need on a VM and that is installed here, without tpulm itself."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    waiting = [Requirement(f"tpulm[{','.join((*_EXTRAS, *extras))}]"), Requirement("jax[tpu]")]
    versions: dict[str, str] = {}
    visited: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        for extra in ("", *requirement.extras):
            name = canonicalize_name(requirement.name)
            if (name, extra) in visited:
                continue
            visited.add((name, extra))
            try:
                installed = metadata.distribution(requirement.name)
            except metadata.PackageNotFoundError:
                continue
            if name not in ("tpulm", "jax"):
                versions[name] = installed.version
            needed = [Requirement(text) for text in installed.requires or ()]
            environment = {**MARKERS, "extra": extra}
            waiting += [one for one in needed if one.marker is None or one.marker.evaluate(environment)]
    return [f"jax[tpu]=={metadata.version('jax')}", *(f"{name}=={version}" for name, version in sorted(versions.items()))]


def _source() -> dict[str, bytes]:
    """The running tpulm, however it was installed, with its metadata."""
    package = source_folder()
    files = {
        f"source/tpulm/{path.relative_to(package)}": path.read_bytes()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    described = f"source/tpulm-{metadata.version('tpulm')}.dist-info/METADATA"
    return {**files, described: str(metadata.metadata("tpulm")).encode()}


def _pack(files: Mapping[str, bytes | Path], target: Path) -> None:
    """The same files give the same bytes."""
    with (
        target.open("wb") as packed,
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=1, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                entry.size, entry.mode = len(content), 0o644
                archive.addfile(entry, io.BytesIO(content))
            elif content.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, str(content.readlink())
                archive.addfile(entry)
            else:
                entry.size, entry.mode = content.stat().st_size, 0o755 if os.access(content, os.X_OK) else 0o644
                with content.open("rb") as stream:
                    archive.addfile(entry, stream)


# The environment of TPU VMs, as `packaging` names it in markers.
MARKERS = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}
_GLIBC = 31  # 2.31, of Ubuntu 20.04: images of TPU VMs have that or newer
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # the pinned versions are for this one


def fetch_uv(folder: Path) -> Path:
    """uv for TPU VMs: this machine's own, or one fetched into `folder`."""
    if sys.platform == MARKERS["sys_platform"] and platform.machine() == MARKERS["platform_machine"]:
        return _uv()
    (wheel,) = _download([f"uv=={metadata.version('uv')}"], folder / "uv")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        program = Path(archive.extract(name, folder))
    program.chmod(0o755)
    return program


def fetch_wheels(pins: Sequence[str], folder: Path) -> list[Path]:
    """The wheels of `pins` and their dependencies on a TPU VM. Raises TpulmError if one cannot be fetched."""
    folder.mkdir(exist_ok=True)
    (folder / "pins.txt").write_text("\n".join(pins) + "\n", encoding="utf-8")
    options = ["--python-platform", f"x86_64-manylinux_2_{_GLIBC}", "--python-version", _PYTHON, "--no-header", "--no-annotate"]
    resolved = _run([_uv(), "pip", "compile", "--quiet", *options, folder / "pins.txt"], "find the packages for the VMs")
    return _download([line for line in resolved.splitlines() if line.strip()], folder)


def fetch_interpreter(folder: Path) -> Path:
    """The folder of a relocatable CPython (from python-build-standalone) of this Python's version."""
    named = f"cpython-{_PYTHON}-linux-x86_64-gnu"
    advice = "UV_PYTHON_INSTALL_MIRROR names another place to fetch it from"
    _run([_uv(), "python", "install", "--no-progress", "--no-bin", "--install-dir", folder, named], f"fetch {named}", advice)
    return next(path for path in sorted(folder.glob("cpython-*")) if not path.is_symlink())


def _uv() -> Path:
    with needing_extra("launching needs uv", "cloud"):
        from uv import find_uv_bin
    return Path(find_uv_bin())


def _download(requirements: Sequence[str], folder: Path) -> list[Path]:
    """One wheel per requirement, without dependencies."""
    libraries = [*(f"manylinux_2_{minor}" for minor in range(_GLIBC, 4, -1)), "manylinux2014"]
    for_vms = ["--only-binary=:all:", "--implementation=cp", f"--python-version={_PYTHON}"]
    for_vms += [f"--platform={library}_x86_64" for library in libraries]
    command = [_uv(), "tool", "run", "--quiet", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    _run([*command, *for_vms, "--dest", folder, *requirements], "fetch the packages for the VMs")
    return sorted(folder.glob("*.whl"))


def _run(command: Sequence[str | os.PathLike[str]], what: str, advice: str = "is there a network?") -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        message = "; ".join(line.strip() for line in done.stderr.splitlines()[-3:] if line.strip())
        raise TpulmError(f"cannot {what}: {message or f'exit code {done.returncode}'}; {advice}")
    return done.stdout
