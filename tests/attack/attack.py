"""Commands run on damaged inputs, one case at a time, and what is to be objected to in how they end."""

from __future__ import annotations

import json
import re
import select
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinds import SECRET

CPU_SECONDS = 10.0
"""What a command may take for an input of less than 1 MB."""
WALL_SECONDS = 90.0
"""When a command counts as one that never ends; the machine may be busy with others."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass
class Tally:
    """How many cases of a kind ended how; `findings` are sentences on those that should not have ended so."""

    cases: int = 0
    refused: int = 0
    accepted: int = 0
    tracebacks: int = 0
    hangs: int = 0
    crashes: int = 0
    others: int = 0
    findings: list[str] = field(default_factory=list)

    def row(self, kind: str) -> str:
        """A row of a table in Markdown."""
        counts = (self.cases, self.refused, self.accepted, self.tracebacks, self.hangs, self.crashes, self.others)
        return f"| {kind} | {' | '.join(map(str, counts))} |"


HEADER = (
    "| input | cases | refused in a sentence | accepted | tracebacks | hangs | crashes | others |\n"
    "|---|---|---|---|---|---|---|---|"
)


class Victim:
    """A process that runs commands; it is started again when one has killed it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def run(self, arguments: list[str], folder: Path) -> dict[str, Any]:
        """How a command ended: `status`, `trace`, `seconds`, `out` and `err`, or `signal`, or `hang`."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"arguments": arguments, "folder": str(folder)}) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], WALL_SECONDS)
        line = process.stdout.readline() if ready else ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        if not ready:
            process.kill()
        status = process.wait()
        self._process = None
        return {"signal": -status} if ready else {"hang": True}

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name("victim.py"))]
        with self._log.open("a") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)


def fresh(whole: Path, case: Path) -> None:
    """Put a whole project where a damaged one was."""
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(whole, case, symlinks=True)


def judge(tally: Tally, name: str, arguments: list[str], answer: dict[str, Any], case: Path) -> None:
    """Count how a case ended, and note what is to be objected to."""
    tally.cases += 1

    def find(what: str) -> None:
        tally.findings.append(f"{name}: {what}: autodial {' '.join(arguments)}")

    if "hang" in answer or answer.get("seconds", 0) > CPU_SECONDS:
        tally.hangs += 1
        find("it took longer than 10 s")
    elif "signal" in answer:
        tally.crashes += 1
        find(f"it killed the process (signal {answer['signal']})")
    elif answer["trace"] or "Traceback" in answer["err"]:
        tally.tracebacks += 1
        last = (answer["trace"] or answer["err"]).strip().splitlines()
        find(f"a traceback ({last[-1][:200]}; {next((x.strip() for x in last[::-1] if 'File ' in x), '')})")
    elif answer["status"] == 0:
        tally.accepted += 1
    elif answer["status"] in (1, 2) and "error: " in answer["err"]:
        tally.refused += 1
    else:
        tally.others += 1
        find(f"status {answer['status']} without a sentence: {answer['err'][-200:]!r}")
    if found := _CONTROL.search(answer.get("out", "") + answer.get("err", "")):
        tally.others += 1
        find(f"the character {found[0]!r} reached the terminal")
    left = [path.name for path in case.rglob("*.tmp")]
    if left:
        tally.others += 1
        find(f"{left[0]} was left")
    if any(SECRET.encode() in path.read_bytes() for path in case.glob("new.*") if path.is_file()):
        tally.others += 1
        find("another file's text is in the output")
