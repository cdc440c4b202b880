"""A process that runs `autodial` commands one after the other, so that none pays for the imports again.

Each line of its standard input is a JSON object with the arguments and the folder to run in; each line of its output
says how that went. A command that kills the process, or never ends, is told by whoever asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import tempfile
import time
import traceback

MEMORY = 16 << 30
"""Bytes of address space: a file that claims to be huge must not take the machine along."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        request = json.loads(line)
        os.chdir(request["folder"])
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            for file, number in ((out, 1), (err, 2)):  # libraries in C write there, too
                os.dup2(file.fileno(), number)
            started = time.process_time()
            status, trace = run(request["arguments"])
            seconds = time.process_time() - started
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            written = [_read(file) for file in (out, err)]
        answer = {"status": status, "trace": trace, "seconds": seconds, "out": written[0], "err": written[1]}
        print(json.dumps(answer), file=answers, flush=True)


def run(arguments: list[str]) -> tuple[int, str]:
    """The exit status of a command, and the traceback of what it did not catch."""
    from autodial.cli import main

    sys.argv = ["autodial", *arguments]
    try:
        main()
    except SystemExit as end:
        return (end.code if isinstance(end.code, int) else 1 if end.code else 0), ""
    except BaseException:
        return 1, traceback.format_exc()
    return 0, ""


def _read(file: tempfile._TemporaryFileWrapper[bytes]) -> str:
    file.seek(0)
    return file.read(1 << 20).decode("utf-8", "backslashreplace")


if __name__ == "__main__":
    main()
