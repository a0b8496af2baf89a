"""A headless Chromium, driven through the two pipes of its own protocol: no driver, port or package is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
LIMIT = 60.0  # seconds for an answer, on a machine that is busy


def executable() -> str | None:
    return os.environ.get("BROWSER_EXECUTABLE") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. `errors` gathers what the page complained about: exceptions, console errors, blocked loads."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        self._process = subprocess.Popen(
            [
                executable(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--hide-scrollbars",
                f"--user-data-dir={self._profile.name}", "about:blank",
            ],
            preexec_fn=lambda: (os.dup2(reads, 253), os.dup2(writes, 254), os.dup2(253, 3), os.dup2(254, 4)),
            close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(reads)
        os.close(writes)
        self._buffer, self._number = b"", 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Asks and waits for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._event(answer)

    def open(self, path: Path) -> None:
        """Loads a file, light and 1280 pixels wide, and waits until it has been drawn."""
        self.errors, self.requests, self._events = [], [], []
        self.look(1280, 900, dark=False)
        self.send("Page.navigate", url=path.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._event(self._next())
        self._drawn()

    def look(self, width: int, height: int, dark: bool, scale: float = 1.0) -> None:
        """Size of the window in CSS pixels, colour scheme, and pixels per CSS pixel."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self._drawn()

    def _drawn(self) -> None:
        # Three frames: the page draws anew one frame after it has noticed its new size.
        wait = "new Promise((f) => requestAnimationFrame(f))"
        self.js(f"{wait}.then(() => {wait}).then(() => {wait}).then(() => 1)")

    def js(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def drag(self, x: float, y: float, to_x: float) -> None:
        self.move(x, y)
        self.send("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", buttons=1, clickCount=1)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=to_x, y=y, button="left", buttons=1)
        self.send("Input.dispatchMouseEvent", type="mouseReleased", x=to_x, y=y, button="left", clickCount=1)

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def screenshot(self, path: Path, clip: tuple[float, float, float, float] | None = None, scale: float = 1.0) -> None:
        """PNG of the page; `clip`: (x, y, width, height) in CSS pixels from its top, also beyond the window."""
        options: dict[str, Any] = {"format": "png", "captureBeyondViewport": clip is not None}
        if clip:
            options["clip"] = dict(zip(("x", "y", "width", "height"), clip, strict=True), scale=scale)
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", **options)["data"]))

    def close(self) -> None:
        os.close(self._out)  # the browser ends with its pipe
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._profile.cleanup()

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError(f"the browser did not answer within {LIMIT:.0f} s")
            part = os.read(self._in, 1 << 16)
            if not part:
                raise RuntimeError(f"the browser ended with status {self._process.poll()}")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _event(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method", ""), message.get("params", {})
        self._events.append({"method": method})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(parameters["args"])[:2000])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
