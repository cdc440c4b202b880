"""A headless Chromium, driven by its own protocol over two pipes: https://chromedevtools.github.io/devtools-protocol/."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser of `width` CSS pixels.

    Args:
        folder: for its profile.
        width: of the page.
        height: of the page.
    """

    def __init__(self, folder: Path, width: int = 1000, height: int = 900) -> None:
        assert CHROMIUM is not None
        its_input, self._to = os.pipe()
        self._from, its_output = os.pipe()

        def connect() -> None:  # Chromium reads from 3 and writes to 4
            ends = os.dup(its_input), os.dup(its_output)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [
                *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--remote-debugging-pipe", f"--user-data-dir={folder}", "--no-first-run", "--disable-extensions"),
                *("--disable-background-networking", "--disable-component-update", "about:blank"),
            ],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_input)
        os.close(its_output)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        """Errors that the page had, and addresses elsewhere that it asked for."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "DOM", "Log", "Accessibility"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of one command of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(answer["params"]["exceptionDetails"])[:500])
            if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.errors.append(answer["params"]["entry"]["text"])

    def _read(self) -> Any:
        while b"\0" not in self._buffer:
            part = os.read(self._from, 2**16)
            if not part:
                raise AssertionError("the browser has ended")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def open(self, address: str) -> None:
        """Go to an address, and wait until it is there."""
        self.call("Page.navigate", url=address)
        self.wait_for(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait_for(self, script: str, seconds: float = 30) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < until, f"{script} doesn't become true: {self.run('document.body.innerText')}"
            time.sleep(0.05)

    def choose_files(self, selector: str, *files: Path) -> None:
        """Give files to a file field."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(file) for file in files], nodeId=node)

    def press(self, key: str) -> None:
        """Press and release a key that is no character: Tab, Enter."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], **more)

    def accessible(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader is told of."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
