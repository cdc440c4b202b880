"""The two kinds of failure that the command line reports in one sentence, and exit statuses."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells: 128 + SIGINT."""
TERMINATED = 143
"""Exit status after SIGTERM: 128 + SIGTERM."""


class AutodialError(Exception):
    """One sentence that says what went wrong, where, and what to do; `exit_status` is that of the process."""

    exit_status = 1


class InputError(AutodialError):
    """Something the user gave - a file, a layer, a row, a flag - can't be used. Exit status 2."""

    exit_status = 2


class WorkError(AutodialError):
    """The input was fine and the work failed: a verification, a device, a disk. Exit status 1."""


class DivergedError(WorkError):
    """Training has diverged: a loss or a weight is no longer finite. Running it again would give the same."""
