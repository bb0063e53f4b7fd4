"""Makes a process unable to write large files, as on a full disk."""

import resource


def limit_files(size: int = 2000) -> None:
    """Limits the size of files [bytes], for `preexec_fn`; writing more of them raises an error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
