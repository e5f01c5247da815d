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

from tpulm.storage.arrays import (
    COMMIT as COMMIT,
    committed_steps as committed_steps,
    orbax_folder as orbax_folder,
    tensorstore_location as tensorstore_location,
)
from tpulm.storage.causes import cause_in as cause_in, explain as explain, storage_error as storage_error
from tpulm.storage.cloud import check_guards as check_guards, forget_clients as forget_clients
from tpulm.storage.files import (
    check_writable as check_writable,
    copy_files as copy_files,
    create_if_absent as create_if_absent,
    exists as exists,
    info as info,
    is_folder as is_folder,
    list_folder as list_folder,
    make_durable as make_durable,
    make_folder as make_folder,
    move_folder as move_folder,
    open_read as open_read,
    parse_json as parse_json,
    parse_toml as parse_toml,
    publish as publish,
    read_bytes as read_bytes,
    read_given_object as read_given_object,
    read_json as read_json,
    read_text as read_text,
    read_versioned as read_versioned,
    remove as remove,
    remove_files as remove_files,
    replace_version as replace_version,
    same_file as same_file,
    sha256 as sha256,
    walk as walk,
    write_atomic as write_atomic,
    write_json as write_json,
)
from tpulm.storage.lease import held as held, holder as holder
from tpulm.storage.paths import (
    TEMPORARY_SUFFIX as TEMPORARY_SUFFIX,
    FileInfo as FileInfo,
    absolute as absolute,
    as_path as as_path,
    cache_folder as cache_folder,
    is_remote as is_remote,
)
from tpulm.storage.seals import (
    SEAL as SEAL,
    differences as differences,
    find_damage as find_damage,
    listing as listing,
    seal as seal,
)
from tpulm.storage.staging import (
    Mirror as Mirror,
    Ranges as Ranges,
    abandon as abandon,
    built_aside as built_aside,
    local_copy as local_copy,
    remove_leftovers as remove_leftovers,
    scratch_folder as scratch_folder,
    stream_aside as stream_aside,
)
