"""`autodial` that ends as if killed when it renames a file, in forks of one process that has imported what it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path


class Killing:
    """The process that is forked: a fork takes 50 ms where the imports take seconds."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # more threads would not live on in a fork
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, moves: int, arguments: list[str]) -> bool:
        """Whether `autodial` was ended because it was to rename one file more than so many."""
        assert self._process.stdin and self._process.stdout
        with tempfile.NamedTemporaryFile("r") as output:
            print(json.dumps([moves, str(Path.cwd()), output.name, arguments]), file=self._process.stdin, flush=True)
            status = int(self._process.stdout.readline())
            assert status in (0, 9), output.read()
        return status == 9

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _end_at(moves: int) -> None:
    for name in ("replace", "rename"):

        def moving(path: Path, target: Path, move: object = getattr(Path, name)) -> object:
            nonlocal moves
            moves -= 1
            if moves < 0:
                os._exit(9)
            return move(path, target)  # type: ignore[operator]

        setattr(Path, name, moving)


def _run(moves: int, folder: str, output: str, arguments: list[str]) -> None:
    from autodial.cli import main

    os.chdir(folder)
    file = os.open(output, os.O_WRONLY)
    for number, place in ((os.open(os.devnull, os.O_RDONLY), 0), (file, 1), (file, 2)):
        os.dup2(number, place)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    _end_at(moves)
    sys.argv[1:] = arguments
    status = 1
    try:
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _serve() -> None:
    import autodial.converters.destinations.caffe
    import autodial.converters.dialize
    import autodial.converters.net_export
    import autodial.project.plan
    import autodial.selection.experiment
    import autodial.training.run
    import autodial.training.solver  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if not child:
            _run(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
