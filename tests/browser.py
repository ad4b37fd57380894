"""Chromium for tests of pages: driven through a pipe by its DevTools protocol, in real time."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest


class Browser:
    """A page in a headless Chromium; `complaints` are what its console, its policy and its scripts complained of."""

    def __init__(self, profile: Path, width: int = 1000, height: int = 800, *, dark: bool = False) -> None:
        found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if found is None:
            pytest.skip("no Chromium")
        ours, theirs = os.pipe(), os.pipe()  # what it reads, what it writes
        self.complaints: list[str] = []
        self._count, self._rest = 0, b""

        def hand_over() -> None:  # as the descriptors 3 and 4 that the protocol is spoken on
            read, write = os.dup(ours[0]), os.dup(theirs[1])
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            [found, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=hand_over, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=os.environ | {"HOME": str(profile.parent)},
        )  # fmt: skip
        os.close(ours[0])
        os.close(theirs[1])
        self._in, self._out = ours[1], theirs[0]
        self._session = ""
        pages = [t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.ask("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page: Path) -> None:
        """Load a file, and wait until it is shown."""
        self.ask("Page.navigate", url=page.as_uri())
        self.run(
            "new Promise(done => { const shown = () => requestAnimationFrame(() => requestAnimationFrame(done));"
            " document.readyState === 'complete' ? shown() : addEventListener('load', shown); })"
        )

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited."""
        found = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, *keys: str) -> None:
        """Keys, one after the other, and a frame after each."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def shot(self, path: Path) -> None:
        """What is in the window as a PNG file."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))

    def ask(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol, and its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        if event["method"] == "Log.entryAdded" and told["entry"]["level"] in ("warning", "error"):
            self.complaints.append(told["entry"]["text"])
        if event["method"] == "Runtime.consoleAPICalled" and told["type"] in ("warning", "error", "assert"):
            self.complaints.append(str(told["args"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._out, 1 << 16)
            assert more, "the browser has gone"
            self._rest += more
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))

    def close(self) -> None:
        os.close(self._in)
        os.close(self._out)
        self._process.terminate()
        self._process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
