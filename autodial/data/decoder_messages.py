"""What OpenCV's decoders say about damage, tied to the image that they say it about.

libjpeg, libtiff, libpng and OpenJPEG go on behind most damage, and OpenCV hands over what they make of it; that there
was damage they tell the process's standard error alone, without the image's name. While a process is watched,
file descriptor 2 is a temporary file. Where it grows while an image is decoded, the image is decoded once more while
no other is, and what is written both times is its own. All else that comes to the file, from any library, goes on to
the real standard error. Python's sys.stderr writes there directly.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_STDERR = 2
_POLL = 0.2
"""Seconds after which what no decoder wrote is passed on."""
_PATIENCE = 10.0
"""Seconds after which a thread that decodes is waited for no longer: it was interrupted, or its image is enormous."""
_KEPT = 2**20
"""Bytes of the temporary file from which on it is emptied."""
_WORDS = 3
"""Lines about an image that are repeated."""
_NAMED = 20
"""Damaged images that a command warns of by their names."""

_OPENCV = re.compile(r"\[ *[A-Z]+:\d+@[\d.]+\] global \S+ \S+ (.*)")
"""A line of OpenCV's log: level, thread and time, place, function, text."""
_LIBPNG = "libpng warning: "
_LAST_WORDS = """
import os
start = 0
while message := os.read(0, 4096):
    start = int.from_bytes(message[-8:], "little")
os.lseek(2, start, 0)
while text := os.read(2, 65536):
    os.write(1, text)
os._exit(0)
"""
"""Waits for the end of the process that started it, and then writes what that one did not come to pass on."""


# --- for commands


@contextmanager
def watch_decoders() -> Iterator[None]:
    """Watch this process's decoders, as `listen` needs it: a command does so while it runs.

    File descriptor 2 is the whole process's: a library or a service enters this only if it may decide about that. The
    redirection begins with the first image; what other code writes to the descriptor is then up to 0.2 s late, and is
    not lost if the process is killed. Sub-processes started meanwhile inherit it, and write to their parent's standard
    error only as long as their parent lives. Windows is left as it is.
    """
    if _watch is not None:
        yield
        return
    _begin()
    try:
        yield
    finally:
        _end()


def watch_worker() -> None:
    """The same until this process ends: for one that does nothing but decode images for another."""
    if _watch is None:
        _begin()


def real_stderr() -> int:
    """The file descriptor of what the process was given as standard error."""
    return _STDERR if _watch is None else _watch.real


def _begin() -> None:
    global _watch
    _noted.clear()
    if fcntl is not None:
        with suppress(OSError):  # no more file descriptors
            _watch = _Watch()


def _end() -> None:
    global _watch
    if _watch is not None:
        watch, _watch = _watch, None
        watch.close()


# --- for those who decode


def listen(decode: Callable[[], _T]) -> tuple[_T, str]:
    """What `decode` returns, and what decoders said about damage meanwhile: "" if nothing, or if no one watches.

    Any number of threads may do so at a time. `decode` may be called twice, and is to give the same both times.
    """
    watch = _watch
    return (decode(), "") if watch is None else watch.listener().listen(decode)


def note_damage(text: str) -> None:
    """Warn of a damaged image, once in a command; `text` names it. After some, one warning stands for all others."""
    if _notes.collected is not None:
        _notes.collected.append(text)
    elif text not in _noted and len(_noted) <= _NAMED:
        _noted.add(text)
        _log.warning("%s", text if len(_noted) <= _NAMED else "More images are damaged, which are not named.")


@contextmanager
def collecting_damage() -> Iterator[list[str]]:
    """Collect in a list what this thread's `note_damage` would warn of: for another process, which calls it again."""
    outer, _notes.collected = _notes.collected, []
    try:
        yield _notes.collected
    finally:
        _notes.collected = outer


class _Notes(threading.local):
    collected: list[str] | None = None


_notes = _Notes()
_noted: set[str] = set()


# --- the process's standard error


class _Watch:
    """A process whose standard error may be redirected, and is from the first image on."""

    def __init__(self) -> None:
        try:
            os.fstat(_STDERR)
        except OSError:  # closed: the next file to be opened would get the number, and the decoders' lines
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, _STDERR)
            if null != _STDERR:
                os.close(null)
        self.real = os.dup(_STDERR)
        self._given, self._own = sys.stderr, _on(self.real, sys.stderr)
        sys.stderr = self._own
        self._starting = threading.Lock()
        self._redirection: _Redirection | None = None
        self._level: int | None = None
        """OpenCV's log level before."""

    def listener(self) -> _Redirection:
        redirection = self._redirection
        if redirection is None:
            with self._starting:
                redirection = self._redirection = self._redirection or self._redirect()
        return redirection

    def _redirect(self) -> _Redirection:
        from cv2.utils import logging as cv2_log

        if self._level is None:
            self._level = cv2_log.getLogLevel()
            cv2_log.setLogLevel(max(self._level, cv2_log.LOG_LEVEL_ERROR))  # libtiff's and OpenJPEG's errors
        return _Redirection(self.real, silent=self._level < cv2_log.LOG_LEVEL_ERROR)

    def close(self) -> None:
        if self._redirection is not None:
            self._redirection.close()
        if self._level is not None:
            from cv2.utils import logging as cv2_log

            cv2_log.setLogLevel(self._level)
        if sys.stderr is self._own:
            sys.stderr = self._given
        if self._own is not self._given:
            with suppress(OSError):
                self._own.flush()
        os.close(self.real)

    def after_fork(self) -> None:
        """In a forked process, which begins afresh: the locks and the file are its parent's."""
        self._starting = threading.Lock()
        if self._redirection is not None:
            self._redirection.abandon()
            self._redirection = None


_watch: _Watch | None = None


def _after_fork() -> None:
    if _watch is not None:
        _watch.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _on(file: int, stream: Any) -> Any:
    """A text stream on a file descriptor in the place of one on descriptor 2; any other stream stays."""
    try:
        if stream is None or stream.fileno() != _STDERR:
            return stream
        stream.flush()
    except (OSError, ValueError, AttributeError):  # io.StringIO and the like
        return stream
    return os.fdopen(file, "w", buffering=1, encoding=stream.encoding, errors=stream.errors, closefd=False)


class _Redirection:
    """File descriptor 2 as a temporary file.

    Args:
        real: the descriptor of the real standard error.
        silent: OpenCV's log is to go nowhere, but for what is said about an image.
    """

    def __init__(self, real: int, *, silent: bool) -> None:
        self._real, self._silent = real, silent
        self._file = _temporary_file()
        self._turn = threading.Condition()
        self._decoding = 0
        """Threads that decode now."""
        self._alone = False
        """Whether one wants to have the file for itself, or has it."""
        self._suspects = 0
        """Images during which something was written that isn't known yet to be theirs."""
        self._theirs: Counter[str] = Counter()
        """Lines in the file that were found to be about images."""
        self._passed = 0
        """Bytes of the file that were read and passed on."""
        self._passing = threading.Lock()
        self._keeper = _start_keeper(self._file, real)
        os.dup2(self._file, _STDERR)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="stderr", daemon=True)
        self._thread.start()

    def listen(self, decode: Callable[[], _T]) -> tuple[_T, str]:
        with self._turn:
            while self._alone:
                self._turn.wait()
            if self._closed.is_set():
                return decode(), ""
            self._decoding += 1
        written = False
        try:
            before = self._end()
            result = decode()
            after = self._end()
            written = after != before
        finally:
            with self._turn:
                self._decoding -= 1
                self._suspects += written
                if self._alone and not self._decoding:
                    self._turn.notify_all()
        return result, self._words(decode, before, after) if written else ""

    def _words(self, decode: Callable[[], object], before: int, after: int) -> str:
        """Which of the lines in a part of the file are about the image that `decode` decodes."""
        words: list[str] = []
        try:
            first = {line for line in map(_text, self._read(before, after).splitlines()) if _is_about_damage(line)}
            if first:
                with self._having_it_alone() as alone:
                    if self._closed.is_set() or not alone:
                        return ""
                    before = self._end()
                    decode()
                    again = map(_text, self._read(before, self._end()).splitlines())
                    lines = [line for line in again if line in first]
                    self._theirs.update(2 * lines)
                    words = list(dict.fromkeys(lines))
        finally:
            with self._turn:
                self._suspects -= 1
        self._pass_on()
        more = f"; and {len(words) - _WORDS} more" if len(words) > _WORDS else ""
        return "; ".join(words[:_WORDS]) + more

    def _end(self) -> int:
        """The size of the file: where the next bytes will be written."""
        return os.lseek(self._file, 0, os.SEEK_END)

    def _read(self, start: int, end: int) -> bytes:
        return os.pread(self._file, end - start, start)

    @contextmanager
    def _having_it_alone(self) -> Iterator[bool]:
        """Keep other threads from decoding; False if, for a long time, one has not ended that does."""
        with self._turn:
            while self._alone:
                self._turn.wait()
            self._alone = True
            alone = self._turn.wait_for(lambda: not self._decoding, _PATIENCE)
        try:
            yield alone
        finally:
            with self._turn:
                self._alone = False
                self._turn.notify_all()

    def _poll(self) -> None:
        while not self._closed.wait(_POLL):
            if self._end() != self._passed:
                self._pass_on()

    def _pass_on(self) -> None:
        """Write what came from others than decoders to the real standard error, once it is known which that is."""
        if not self._passing.acquire(blocking=self._closed.is_set()):
            return
        try:
            with self._having_it_alone() as alone:
                if (not alone or self._suspects) and not self._closed.is_set():
                    return
                end = self._end()
                text = self._read(self._passed, end)
                theirs, self._theirs = self._theirs, Counter()
                if end > _KEPT:
                    os.ftruncate(self._file, 0)
                    end = 0
            self._passed = end
            _write(self._real, self._without(theirs, text))
            if self._keeper is not None and self._keeper.stdin is not None:
                with suppress(OSError):
                    os.write(self._keeper.stdin.fileno(), end.to_bytes(8, "little"))
        finally:
            self._passing.release()

    def _without(self, theirs: Counter[str], written: bytes) -> bytes:
        """What others than decoders have `written`."""
        others = []
        in_message = False  # of OpenCV's log, which goes on with lines that begin with ">" or are empty
        for line in written.splitlines(keepends=True):
            text = _text(line)
            begins = _OPENCV.match(line.decode("utf-8", "replace")) is not None
            in_message = begins or (in_message and (line.startswith(b">") or not line.strip()))
            if theirs[text] > 0:
                theirs[text] -= 1
            elif not (in_message and (self._silent or not begins)) and not text.startswith(_LIBPNG):
                others.append(line)
                in_message = False
        return b"".join(others)

    def close(self) -> None:
        """Give the descriptor back, and pass on what is left."""
        with self._having_it_alone() as alone:
            self._closed.set()
            os.dup2(self._real, _STDERR)
        self._thread.join()
        self._pass_on()
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.communicate()
        if alone:  # else a thread would look at a file of another's
            os.close(self._file)

    def abandon(self) -> None:
        """Give the descriptor back in a process that was forked."""
        os.dup2(self._real, _STDERR)
        os.close(self._file)
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
            self._keeper.returncode = 0  # it is no child of this process


def _temporary_file() -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("stderr")
    else:
        with tempfile.TemporaryFile() as opened:
            file = os.dup(opened.fileno())
    # Without it, threads that write at a time may write over each other's lines.
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    return file


def _start_keeper(file: int, real: int) -> subprocess.Popen[bytes] | None:
    """A process that outlives this one for a moment, if this one is killed, and writes what the file has left."""
    keeper = None
    with suppress(OSError):
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAST_WORDS],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=real,
            stderr=file,
            start_new_session=True,  # Ctrl-C isn't meant for it
        )
    return keeper


def _write(file: int, text: bytes) -> None:
    with suppress(OSError):  # nobody reads it any more
        while text:
            text = text[os.write(file, text) :]


def _text(line: bytes) -> str:
    """A line without what changes each time: place and time of OpenCV's log."""
    text = line.decode("utf-8", "replace").strip()
    return match[1] if (match := _OPENCV.match(text)) else text


def _is_about_damage(line: str) -> bool:
    """libpng warns of unusual metadata, too; damage that it goes on behind shows as a checksum of some other chunk."""
    return bool(line) and (not line.startswith(_LIBPNG) or "CRC error" in line)
