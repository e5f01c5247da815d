"""Prints what identifies this interpreter's tpulm: a SHA-256 of its source files. For Python 3.8 and newer."""

import hashlib
import sys
from importlib.util import find_spec
from pathlib import Path


def digest(package):
    """SHA-256 over the names and contents of a package's files."""
    package, hasher = Path(package), hashlib.sha256()
    names = sorted(str(path.relative_to(package)) for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    for name in names:
        content = (package / name).read_bytes()
        hasher.update(f"{name}\0{len(content)}\0".encode())
        hasher.update(content)
    return hasher.hexdigest()


if __name__ == "__main__":
    spec = find_spec("tpulm")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(1)
    print(digest(spec.submodule_search_locations[0]))
