"""A headless Chromium, driven over its debugging pipe: two file descriptors, JSON between NUL bytes."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# The browser wants its pipe as descriptors 3 and 4.
_LAUNCH = (
    "import os, sys; r, w = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]));"
    "r2, w2 = os.dup(r), os.dup(w); os.dup2(r2, 3); os.dup2(w2, 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_PATIENCE_S = 60.0


class Browser:
    """One page in one browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._unread = b""
        self._num_commands = 0
        self.session: str | None = None
        self.complaints: list[str] = []  # errors of the page, refusals of its policy

    def ask(self, method: str, **params: Any) -> Any:
        self._num_commands += 1
        message: dict[str, Any] = {"id": self._num_commands, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._num_commands:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def open(self, url: str) -> None:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript in the page; promises are waited for."""
        result = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until it is true; an error counts as not yet."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            if self.run(f"(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()"):
                return
            assert time.monotonic() < until, f"never came true: {expression}; {self.complaints}"
            time.sleep(0.05)

    def press(self, key: str, text: str | None = None) -> None:
        rest = {"text": text} if text else {}
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        code = codes.get(key, 0)
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **rest)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def write(self, text: str) -> None:
        self.ask("Input.insertText", text=text)

    def resize(self, width: int, height: int, *, is_dark: bool = False, is_phone: bool = False) -> None:
        scale = 2 if is_phone else 1
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=is_phone,
        )
        scheme = "dark" if is_dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def shoot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser is gone"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


@contextmanager
def open_browser(url: str) -> Iterator[Browser]:
    """A browser with the page open; it and its profile are gone afterwards."""
    assert CHROMIUM is not None
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-background-networking"]
        launch = [sys.executable, "-c", _LAUNCH, str(to_browser[0]), str(from_browser[1]), CHROMIUM, *flags]
        pass_fds = (to_browser[0], from_browser[1])
        process = subprocess.Popen(
            launch, pass_fds=pass_fds, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for descriptor in pass_fds:
            os.close(descriptor)
        browser = Browser(to_browser[1], from_browser[0])
        try:
            browser.open(url)
            yield browser
        finally:
            process.kill()
            process.wait()
            os.close(to_browser[1])
            os.close(from_browser[0])
