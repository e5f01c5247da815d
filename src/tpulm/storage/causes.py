"""Errors of the operating system and Cloud Storage as `StorageError`, with the likely cause and the fix."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpulm.errors import MissingExtra, StorageError, StorageRefused, StorageUnavailable, installing
from tpulm.storage.paths import REMOTE, bucket_and_name, is_remote


@contextlib.contextmanager
def explain(operation: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an error inside the block, local or of Cloud Storage, into a StorageError: "cannot {operation} {path}: {cause}"."""
    if not is_remote(path):
        try:
            yield
        except OSError as error:
            raise storage_error(operation, path, error) from error
        return
    with needing_extra():
        from google.api_core import exceptions
        from google.auth import exceptions as auth
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

    try:
        yield
    except exceptions.RetryError as error:
        raise _cloud_error(operation, path, error.cause or error, persistent=True) from error
    except (exceptions.GoogleAPIError, auth.GoogleAuthError, InvalidResponse, DataCorruption, OSError) as error:
        raise _cloud_error(operation, path, error) from error


def storage_error(operation: str, path: str | os.PathLike[str], error: OSError) -> StorageError:
    cause = _known_cause(error) or error.strerror or str(error)
    return StorageError(f"cannot {operation} {os.fspath(path)}: {cause}")


if TYPE_CHECKING:
    from google.cloud.storage import Client

_CAUSES = {
    errno.ENOSPC: "the disk is full; free some space, then run the same command again",
    errno.EDQUOT: "your disk quota is used up; free some space, then run the same command again",
    errno.EROFS: "the file system is read-only; choose another folder with --workdir",
    errno.EACCES: "permission denied; choose a folder you may write to, or change its owner",
    errno.EPERM: "permission denied; choose a folder you may write to, or change its owner",
    errno.ENOENT: "no such file or folder",
    errno.EEXIST: "a file of that name is there; name another",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.EFBIG: "the file would exceed a size limit (ulimit -f)",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "the system has too many open files; end other programs",
    errno.ENOMEM: "memory does not suffice; end other programs",
    errno.EIO: "the device reported an input/output error",
}


def _known_cause(error: BaseException) -> str | None:
    """None if the error is not the operating system's, or its own message says enough."""
    return _CAUSES.get(error.errno or 0) if isinstance(error, OSError) else None


def cause_in(message: str) -> str | None:
    """The cause that a library's message names in the operating system's words, such as "Too many open files"."""
    known = {os.strerror(number): cause for number, cause in _CAUSES.items()}
    match = re.search(rf"[:\]] ({'|'.join(map(re.escape, known))})", message)
    return known[match[1]] if match else None


LOGIN = (
    "there are no credentials for Google Cloud; on your machine run 'gcloud auth application-default login', on a VM give it a "
    "service account, elsewhere set GOOGLE_APPLICATION_CREDENTIALS to a credentials file"
)


def no_login() -> str:
    """Why there are no credentials, and how to get some."""
    file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if file and not Path(file).is_file():
        return f"GOOGLE_APPLICATION_CREDENTIALS names {file}, which is not there; correct it, or unset it to use gcloud's login"
    return LOGIN


@contextlib.contextmanager
def needing_extra(what: str = f"paths that begin with {REMOTE} need a package more", extra: str = "gcs") -> Iterator[None]:
    """Guard imports that need the extra."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{what}: {installing(extra)}") from error


@functools.cache
def client() -> Client:
    """The client of this process."""
    with needing_extra():
        from google.cloud import storage
    # Else the library asks for each bucket's location, in a separate thread, for traces that nobody collects.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    with explain("log in for", REMOTE):
        return storage.Client(project=os.environ.get("GOOGLE_CLOUD_PROJECT"))


def identity() -> str:
    """The account that Cloud Storage sees, for messages."""
    credentials = client()._credentials
    for name in ("service_account_email", "signer_email", "account"):
        value = getattr(credentials, name, None)
        if isinstance(value, str) and value:
            return "the VM's default service account" if value == "default" else value
    return "anonymous" if type(credentials).__name__ == "AnonymousCredentials" else "your own login"


def _cloud_error(
    operation: str, path: str | os.PathLike[str], error: BaseException, *, persistent: bool = False
) -> StorageError:
    from google.api_core import exceptions
    from google.auth import exceptions as auth

    bucket, _ = bucket_and_name(path)
    message = message_of(error)
    kind: type[StorageError] = StorageError
    if isinstance(error, auth.DefaultCredentialsError):
        kind, cause = StorageRefused, no_login()
    elif isinstance(error, auth.RefreshError):
        kind, cause = (StorageUnavailable, message) if is_transient(error) else (StorageRefused, expired(message))
    elif isinstance(error, (exceptions.Unauthorized, exceptions.Forbidden)):
        kind = StorageRefused
        cause = (
            f"the project of the bucket has no billing account ({message})"
            if "billing" in message.lower()
            else f"no permission for {identity()} ({message}); grant it the role roles/storage.objectAdmin on gs://{bucket}, "
            "or log in as somebody else"
        )
    elif isinstance(error, exceptions.NotFound):
        cause = (
            f"there is no bucket {bucket}, or it is in a project that {identity()} may not see; make it with "
            f"'gcloud storage buckets create gs://{bucket} --location=REGION', or correct its name"
            if "bucket does not exist" in message
            else "no such object"
        )
    elif isinstance(error, exceptions.PreconditionFailed):
        cause = "another process wrote it meanwhile"
    elif (known := _known_cause(error)) is not None:  # of a local file being uploaded or downloaded
        cause = known
    elif persistent or isinstance(error, (exceptions.ServerError, exceptions.TooManyRequests, OSError)):
        kind = StorageUnavailable
        cause = (
            f"Cloud Storage did not answer as it should for too long ({message}); run the same command again: it continues "
            "where it stopped"
        )
    else:
        cause = message
    return kind(f"cannot {operation} {os.fspath(path)}: {cause}")


def is_transient(error: BaseException) -> bool:
    """Whether a token error may be transient: a VM's metadata server answers 500 and 503 now and then."""
    return bool(getattr(error, "retryable", False)) or "metadata.google.internal" in str(error)


def expired(why: str) -> str:
    return f"the login has expired or was revoked ({why}); {LOGIN.partition('; ')[2]}"


def message_of(error: BaseException) -> str:
    """The server's own message, in one line. For uploads and downloads only the response has it."""
    text = str(getattr(error, "message", "") or error)
    response = getattr(error, "response", None)
    with contextlib.suppress(Exception):  # a truncated response
        text = response.text or text  # type: ignore[union-attr]
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["error"]["message"]
    if text.lstrip().startswith("<"):  # a page of some proxy
        text = f"HTTP status {getattr(response, 'status_code', 'unknown')}"
    return (text.strip() or type(error).__name__).splitlines()[0]
