"""The two kinds of failure that the command line reports in one sentence, and the exit statuses of processes."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""
TERMINATED = 143
"""The same after SIGTERM."""


class AutodialError(Exception):
    """What went wrong, where, and what to do, in one sentence; `exit_status` is the process's."""

    exit_status = 1


class InputError(AutodialError):
    """Something the user gave - a file, a layer, a row, a flag - can't be used. Exit status 2."""

    exit_status = 2


class WorkError(AutodialError):
    """The input was fine and the work failed: a verification, a device, a disk. Exit status 1."""


class DivergedError(WorkError):
    """Training has diverged: a loss or a weight is no longer finite, and would not be if it were run again."""
