"""What a VM needs to run tpulm, as one archive named by its own SHA-256: the same sources give the same bytes.

agent.py, digest.py   what boot.sh starts
bundle.json           which tpulm this is, and how it is installed where a VM does not have it
tpulm-….whl, pins.txt tpulm itself, and the versions of all that it needs, as they are on the launching machine
uv                    the installer
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path, PurePath

from tpulm import storage
from tpulm.cloud.vm.digest import digest
from tpulm.errors import MissingExtra

_EXTRAS = ("gcs",)  # of tpulm, on a VM
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's own


def source_folder() -> Path:
    """Of the tpulm that is running."""
    return Path(__file__).resolve().parents[1]


def boot_script() -> str:
    return (source_folder() / "cloud" / "vm" / "boot.sh").read_text(encoding="utf-8")


def build(*, python: str | None = None) -> tuple[str, bytes]:
    """(SHA-256, archive). `python`: an interpreter on the VM's image that has this tpulm already."""
    wheel = _wheel()
    described = {
        "digest": digest(source_folder()),
        "python": python,
        "python_version": f"{sys.version_info.major}.{sys.version_info.minor}",
        "wheel": wheel[0],
    }
    folder = source_folder() / "cloud" / "vm"
    files = {
        "agent.py": (folder / "agent.py").read_bytes(),
        "digest.py": (folder / "digest.py").read_bytes(),
        "bundle.json": (json.dumps(described, indent=2, sort_keys=True) + "\n").encode(),
        "pins.txt": ("\n".join(pins()) + "\n").encode(),
        wheel[0]: wheel[1],
        "uv": _uv(),
    }
    packed = _archive(files)
    return hashlib.sha256(packed).hexdigest(), packed


def stage(folder: PurePath, *, python: str | None = None) -> PurePath:
    """Put the bundle into a folder of the bucket, unless it is there; its path."""
    name, packed = build(python=python)
    path = folder / f"{name}.tar.gz"
    if storage.info(path) is None:
        storage.create_if_absent(path, packed)
    return path


def pins() -> list[str]:
    """ "name==version" of everything that tpulm and jax[tpu] need, as installed here; jax[tpu] alone brings what is not."""
    from packaging.requirements import Requirement

    found: dict[str, str] = {"jax[tpu]": metadata.version("jax")}
    waiting = [Requirement(f"tpulm[{','.join(_EXTRAS)}]"), Requirement("jax[tpu]")]
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        for extra in ("", *wanted.extras):
            if (wanted.name.lower(), extra) in seen:
                continue
            seen.add((wanted.name.lower(), extra))
            try:
                installed = metadata.distribution(wanted.name)
            except metadata.PackageNotFoundError:
                continue
            if wanted.name != "tpulm":
                found[wanted.name.lower()] = installed.version
            needed = [Requirement(text) for text in installed.requires or ()]
            waiting += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})]
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _uv() -> bytes:
    try:
        from uv import find_uv_bin
    except ImportError as error:
        raise MissingExtra("launching needs uv: pip install 'tpulm[cloud]'") from error
    return Path(find_uv_bin()).read_bytes()


def _wheel() -> tuple[str, bytes]:
    """(file name, content) of the tpulm that is running, however it was installed."""
    version = metadata.version("tpulm")
    described = f"tpulm-{version}.dist-info"
    package = source_folder()
    files = {
        f"tpulm/{path.relative_to(package)}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files[f"{described}/METADATA"] = str(metadata.metadata("tpulm")).encode()
    files[f"{described}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tpulm\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{described}/entry_points.txt"] = b"[console_scripts]\ntpulm = tpulm.cli.app:main\n"
    files[f"{described}/RECORD"] = _record(files, f"{described}/RECORD")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return f"tpulm-{version}-py3-none-any.whl", content.getvalue()


def _record(files: Mapping[str, bytes], own: str) -> bytes:
    """Every file with its hash, as https://packaging.python.org/en/latest/specifications/recording-installed-packages/ says."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    for name, data in files.items():
        hashed = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={hashed}", len(data)])
    writer.writerow([own, "", ""])
    return lines.getvalue().encode()


def _archive(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if name == "uv" else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
