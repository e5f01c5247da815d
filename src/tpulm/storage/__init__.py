"""One interface to local and gs:// paths, and the only package that reads and writes the files of a run.

Two guarantees hold for both. `write_atomic` replaces an object as a whole: a reader, or a process that resumes after a crash,
sees the old bytes or the new ones, never a mixture. `create_if_absent` lets exactly one of several writers win, and
`replace_version` never overwrites a version its caller has not read. Failures are raised as `StorageError`, with the path, the
operation and the likely cause; gs:// requests that may succeed later are retried first, with jitter, up to a deadline.

Paths are pathlib's pure paths (`as_path`), and every access is a function of this package: `files`, on local disks or, by
`cloud`, on gs://. `lease` lets one process at a time write a folder, `seals` are checksums of what was written, `staging`
holds local copies for libraries that want files, `arrays` says where Orbax and TensorStore find theirs, `causes` why an
access failed.
"""

from tpulm.storage.arrays import COMMIT, committed_steps, orbax_folder, tensorstore_location
from tpulm.storage.causes import cause_in, explain, storage_error
from tpulm.storage.cloud import check_guards, forget_clients
from tpulm.storage.files import (
    check_writable,
    copy_files,
    create_if_absent,
    exists,
    info,
    is_folder,
    list_folder,
    make_durable,
    make_folder,
    move_folder,
    open_read,
    parse_json,
    parse_toml,
    publish,
    read_bytes,
    read_given_object,
    read_json,
    read_text,
    read_versioned,
    remove,
    remove_files,
    replace_version,
    same_file,
    sha256,
    walk,
    write_atomic,
    write_json,
)
from tpulm.storage.lease import held, holder
from tpulm.storage.paths import TEMPORARY_SUFFIX, FileInfo, absolute, as_path, is_remote
from tpulm.storage.seals import SEAL, differences, find_damage, listing, seal
from tpulm.storage.staging import (
    Mirror,
    Ranges,
    abandon,
    built_aside,
    local_copy,
    open_ranges,
    remove_leftovers,
    scratch_folder,
    stream_aside,
)

__all__ = [
    "COMMIT",
    "SEAL",
    "TEMPORARY_SUFFIX",
    "FileInfo",
    "Mirror",
    "Ranges",
    "abandon",
    "absolute",
    "as_path",
    "built_aside",
    "cause_in",
    "check_guards",
    "check_writable",
    "committed_steps",
    "copy_files",
    "create_if_absent",
    "differences",
    "exists",
    "explain",
    "find_damage",
    "forget_clients",
    "held",
    "holder",
    "info",
    "is_folder",
    "is_remote",
    "list_folder",
    "listing",
    "local_copy",
    "make_durable",
    "make_folder",
    "move_folder",
    "open_ranges",
    "open_read",
    "orbax_folder",
    "parse_json",
    "parse_toml",
    "publish",
    "read_bytes",
    "read_given_object",
    "read_json",
    "read_text",
    "read_versioned",
    "remove",
    "remove_files",
    "remove_leftovers",
    "replace_version",
    "same_file",
    "scratch_folder",
    "seal",
    "sha256",
    "storage_error",
    "stream_aside",
    "tensorstore_location",
    "walk",
    "write_atomic",
    "write_json",
]
