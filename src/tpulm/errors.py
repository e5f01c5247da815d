"""Every error tpulm raises on purpose, and the exit code each one ends a command with.

    TpulmError                      1   anything not listed below
    ├── ConfigError                 2   a setting, an option or a run file is wrong
    │   ├── WorkFolderMismatch      2   the work folder belongs to another configuration or other inputs
    │   └── MissingExtra            2   an optional dependency is not installed
    ├── DataError                   3   the user's text, labels or vocabulary cannot be used
    ├── CloudRefused                4   permission, quota or budget
    ├── Unavailable                 1   a service kept failing for minutes; it may work later
    ├── StorageError                1   a file or object could not be read or written (disk full, read-only, …)
    │   ├── Damaged                 1   a file that tpulm wrote is not as it was written
    │   ├── StorageRefused          4   no credentials for Cloud Storage, or no permission
    │   ├── StorageUnavailable      1   Cloud Storage kept failing; also an Unavailable
    │   └── InUse                   1   another process works in the folder
    ├── CheckpointError             1   no checkpoint could be restored
    ├── TrainingDiverged            1   the loss became NaN or jumped
    ├── DeviceError                 1   this machine's chips do not work, or another process holds them
    ├── PeerLost                   76   another host of the run is gone (or that host's own exit code)
    └── Stopped                    75   stopped on request after saving; the same command continues

A message says what happened, the value found and the value expected, and what to do about it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from unicodedata import normalize

from tpulm.readable import pasteable

EXIT_STOPPED = 75
EXIT_PEER_LOST = 76


class TpulmError(Exception):
    """Base of the tree; `exit_code` is what a command exits with, `kind` what a failure record is filed under."""

    exit_code = 1

    def __init__(self, message: str = ""):
        super().__init__(_presentable(message))

    @property
    def kind(self) -> str:
        return type(self).__name__


class ConfigError(TpulmError):
    """A setting, an option or a run file is wrong."""

    exit_code = 2


class WorkFolderMismatch(ConfigError):
    """The work folder belongs to another configuration or other inputs."""


class MissingExtra(ConfigError):
    """An optional dependency is not installed; the message names the extra."""


class DataError(TpulmError):
    """The user's data cannot be used. `location` is "file, line 7", or as precise as is known."""

    exit_code = 3

    def __init__(self, message: str, *, location: str | None = None):
        super().__init__(f"{location}: {message}" if location else message)
        self.location = location


class CloudRefused(TpulmError):
    """Google Cloud refused: permission, quota or budget."""

    exit_code = 4


class Unavailable(TpulmError):
    """A service did not respond, or only with server errors, until the retries ran out."""


class StorageError(TpulmError):
    """A file or object could not be read or written."""


class Damaged(StorageError):
    """A file that tpulm wrote is not as it was written."""


class StorageRefused(StorageError):
    """Cloud Storage does not know these credentials, or denies them permission."""

    exit_code = 4


class StorageUnavailable(StorageError, Unavailable):
    """Cloud Storage did not respond, or only with errors, until the retries ran out."""


class InUse(StorageError):
    """Another process, `owner`, holds the folder."""

    def __init__(self, message: str, *, owner: str = ""):
        super().__init__(message)
        self.owner = owner


class CheckpointError(TpulmError):
    """No checkpoint could be restored, or one belongs to something else."""


class TrainingDiverged(TpulmError):
    """The loss became NaN or jumped; the message names step, rows and the last good checkpoint."""


class DeviceError(TpulmError):
    """This machine's chips do not work, or another process holds them."""


class PeerLost(TpulmError):
    """Another host of the run is gone: killed, vanished, or ended with exit code `code`, with which this process exits, too."""

    exit_code = EXIT_PEER_LOST

    def __init__(self, message: str, *, code: int = EXIT_PEER_LOST):
        super().__init__(message)
        self.exit_code = code


class Stopped(TpulmError):
    """Stopped on request (Ctrl-C, SIGTERM) after saving; running the same command again continues."""

    exit_code = EXIT_STOPPED


def installing(extras: str) -> str:
    """How to install these extras. No package index has tpulm yet; when one does, change this and docs/installing.md."""
    return f"pip install -e '.[{extras}]' in your clone of tpulm"


def _presentable(message: str) -> str:
    """The message, safe to print: text quoted from files must not fill the terminal, nor control it."""
    message = re.sub(r"(\S{200})\S{800,}", r"\1…", message)
    message = pasteable(message)
    if message.replace("\n", "").isprintable():
        return message
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in message)


def some_of(names: Sequence[str], most: int = 3) -> str:
    """The first `most` names, as in a message: "a, b, c and 4 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def shorten(text: str, limit: int = 60, *, quoted: bool = True) -> str:
    """Text of the user's data, shortened for a message."""
    shown = repr(text[:limit]) if quoted else text[:limit]
    return f"{shown}…" if len(text) > limit else shown


def brief(value: object) -> str:
    """Any value, shortened for a message."""
    return shorten(repr(value), quoted=False)


def suggest(name: str, known: Iterable[str], *, within: str = "") -> str:
    """ " Did you mean 'x'?" (with the leading space) if a known name is near, else ""; x is shown with what it is `within`."""
    known = list(known)
    if same := [other for other in known if other != name and normalize("NFC", other) == normalize("NFC", name)]:
        return f" '{same[0]}' looks like it, in another Unicode form, as macOS writes names: copy the name from its folder."
    if len(whole := [other for other in known if name in re.split(r"[\W_]+", other)]) == 1:  # 'gold_label' for 'label'
        return f" Did you mean '{within}{whole[0]}'?"
    parts = {normalize("NFD", other): other for other in known}  # the letters of Hangul's syllables, and accents
    near = difflib.get_close_matches(normalize("NFD", name), parts, n=1, cutoff=0.6)
    return f" Did you mean '{within}{parts[near[0]]}'?" if near else ""
