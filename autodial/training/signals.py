"""What a process that trains does when a signal asks it to end."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from autodial.data.decoder_messages import real_stderr
from autodial.system.streams import discard
from autodial.training.solver import Solver


@contextmanager
def heeding_signals(solver: Solver) -> Iterator[Collection[int]]:
    """Let the first SIGINT or SIGTERM stop the solver after its iteration, and the next one end it at once.

    SIGHUP asks for a snapshot, as in `caffe train`, unless the process ignores it (nohup). With several ranks, SIGTERM
    and SIGHUP act like the first SIGINT: torchrun sends SIGTERM to the remaining ranks when one is lost, and torchrun
    itself ends with the terminal.

    Yields:
        the signals that came, SIGINT or SIGTERM; with several ranks, only SIGINT.
    """
    stderr = real_stderr()
    terminals = [number for number in {1, 2, stderr} if os.isatty(number)]
    heeded: set[int] = set()

    def on_interrupt(number: int, frame: object) -> None:
        heeded.add(number)
        solver.stop()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if solver.ranks is None or solver.ranks.rank == 0:
            again = b"; press Ctrl-C again to stop at once" if number == signal.SIGINT else b", as SIGTERM asks"
            with suppress(OSError):  # standard error is gone
                # not `print`: the signal may have interrupted one
                os.write(stderr, b"\nStopping after this iteration" + again + b"\n")

    def on_end(number: int, frame: object) -> None:
        assert solver.ranks is not None
        solver.ranks.limit_waits()
        solver.stop()

    def on_hangup(number: int, frame: object) -> None:
        solver.ask_snapshot()
        if not all(map(os.isatty, terminals)):  # the terminal is gone, and writing there would fail
            discard(*terminals)

    handlers = {signal.SIGINT: on_interrupt, signal.SIGTERM: on_interrupt if solver.ranks is None else on_end}
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = on_hangup if solver.ranks is None else on_end
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield heeded
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
