"""What an error of the operating system means for the user."""

from __future__ import annotations

import errno

_CAUSES = {
    errno.ENOSPC: "the disk is full; free some space, then run the same command again",
    errno.EDQUOT: "your disk quota is used up; free some space, then run the same command again",
    errno.EROFS: "the file system is read-only; choose another folder with --workdir",
    errno.EACCES: "permission denied; choose a folder you may write to, or change its owner",
    errno.EPERM: "permission denied; choose a folder you may write to, or change its owner",
    errno.ENOENT: "no such file or folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.EFBIG: "the file would exceed a size limit (ulimit -f)",
    errno.EMFILE: "too many open files (ulimit -n)",
    errno.EIO: "the device reported an input/output error",
}


def known_cause(error: BaseException) -> str | None:
    """None where the error is none of the operating system, or its own words say enough."""
    return _CAUSES.get(error.errno or 0) if isinstance(error, OSError) else None
