"""Assigns the messages of OpenCV's decoders about damage to the images that they are about.

libjpeg, libtiff, libpng and OpenJPEG decode past most damage, and OpenCV returns the result. They report the damage
only on the process's standard error, without the image's name. While a process is watched, file descriptor 2 is a
temporary file. If it grows while an image is decoded, the image is decoded again while no other is, and lines written
both times belong to this image. Everything else that reaches the file, from any library, is passed on to the real
standard error. Python's sys.stderr writes there directly.
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
"""Seconds until other libraries' lines are passed on."""
_PATIENCE = 10.0
"""Seconds to wait for a thread that decodes: it may have been interrupted, or its image may be enormous."""
_KEPT = 2**20
"""The size in bytes at which the temporary file is emptied."""
_WORDS = 3
"""The number of lines about an image that a message repeats."""
_NAMED = 20
"""The number of damaged images that a command warns of by name."""

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
"""Waits for the end of the process that started it, and then writes what that process had not passed on yet."""


# --- for commands


@contextmanager
def watch_decoders() -> Iterator[None]:
    """Watch this process's decoders, as `listen` requires; a command does so while it runs.

    File descriptor 2 belongs to the whole process: a library or a service should enter this only if it may decide about
    that. The redirection begins with the first image. From then on, other code's writes to the descriptor are up to
    0.2 s late, but not lost if the process is killed. Subprocesses started meanwhile inherit the redirection, and reach
    their parent's standard error only while the parent lives. On Windows nothing is redirected.
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
    """Watch this process's decoders until it ends, for a process that only decodes images for another one."""
    if _watch is None:
        _begin()


def is_watching() -> bool:
    """Whether this process's decoders are watched."""
    return _watch is not None


def real_stderr() -> int:
    """The file descriptor of the process's original standard error."""
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
    """The result of `decode`, and what decoders reported about damage meanwhile: "" if nothing, or without a watch.

    Any number of threads may call it at a time. `decode` may be called twice, and must return the same both times.
    """
    watch = _watch
    return (decode(), "") if watch is None else watch.listener().listen(decode)


def note_damage(text: str) -> None:
    """Warn once per command of a damaged image, which `text` names; after many, one warning stands for all others."""
    if _notes.collected is not None:
        _notes.collected.append(text)
    elif text not in _noted and len(_noted) <= _NAMED:
        _noted.add(text)
        _log.warning("%s", text if len(_noted) <= _NAMED else "More images are damaged; further names are left out")


@contextmanager
def collecting_damage() -> Iterator[list[str]]:
    """Collect this thread's `note_damage` texts in a list instead, so that another process can call it with them."""
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
    """A process whose standard error is redirected from its first image on."""

    def __init__(self) -> None:
        try:
            os.fstat(_STDERR)
        except OSError:  # closed: the next opened file would get this number, and the decoders' lines
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
        """Start again in a forked process: the locks and the file belong to its parent."""
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
    """A text stream on a file descriptor, to replace one on descriptor 2; any other stream is returned as it is."""
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
        silent: discard OpenCV's log, except for messages about an image.
    """

    def __init__(self, real: int, *, silent: bool) -> None:
        self._real, self._silent = real, silent
        self._file = _temporary_file()
        self._turn = threading.Condition()
        self._decoding = 0
        """The number of threads that decode now."""
        self._alone = False
        """Whether a thread waits for exclusive use of the file, or has it."""
        self._suspects = 0
        """The number of images during whose decoding something was written that is not assigned yet."""
        self._theirs: Counter[str] = Counter()
        """Lines in the file that are about images."""
        self._passed = 0
        """The number of bytes of the file that were passed on."""
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
        """The lines in a part of the file that are about the image that `decode` decodes."""
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
        """The size of the file, where the next bytes will be written."""
        return os.lseek(self._file, 0, os.SEEK_END)

    def _read(self, start: int, end: int) -> bytes:
        return os.pread(self._file, end - start, start)

    @contextmanager
    def _having_it_alone(self) -> Iterator[bool]:
        """Keep other threads from decoding; False if one of them has not finished for a long time."""
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
        """Write other libraries' lines to the real standard error, once all lines are assigned."""
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
        """The part of `written` that does not come from decoders."""
        others = []
        in_message = False  # a message in OpenCV's log continues with lines that begin with ">" or are empty
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
        """Restore the descriptor, and pass on what is left."""
        with self._having_it_alone() as alone:
            self._closed.set()
            os.dup2(self._real, _STDERR)
        self._thread.join()
        self._pass_on()
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.communicate()
        if alone:  # otherwise a thread may still use the number, which could be another file's by then
            os.close(self._file)

    def abandon(self) -> None:
        """Restore the descriptor in a forked process."""
        os.dup2(self._real, _STDERR)
        os.close(self._file)
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
            self._keeper.returncode = 0  # not a child of this process


def _temporary_file() -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("stderr")
    else:
        with tempfile.TemporaryFile() as opened:
            file = os.dup(opened.fileno())
    # Without O_APPEND, threads may overwrite each other's lines.
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    return file


def _start_keeper(file: int, real: int) -> subprocess.Popen[bytes] | None:
    """A process that writes the rest of the file if this process is killed."""
    keeper = None
    with suppress(OSError):
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAST_WORDS],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=real,
            stderr=file,
            start_new_session=True,  # so that Ctrl-C does not reach it
        )
    return keeper


def _write(file: int, text: bytes) -> None:
    with suppress(OSError):  # nobody reads it anymore
        while text:
            text = text[os.write(file, text) :]


def _text(line: bytes) -> str:
    """A line without the parts that change each time: place and time in OpenCV's log."""
    text = line.decode("utf-8", "replace").strip()
    return match[1] if (match := _OPENCV.match(text)) else text


def _is_about_damage(line: str) -> bool:
    """Whether a line reports damage; libpng also warns of unusual metadata, and shows damage as a wrong checksum."""
    return bool(line) and (not line.startswith(_LIBPNG) or "CRC error" in line)
