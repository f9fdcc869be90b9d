"""Chromium for tests: one process, driven over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Seconds for an answer; a busy machine takes a while to start a browser.
_PATIENCE = 60.0
_SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    # The same pixels whatever the machine's settings of fonts and screen are.
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--force-color-profile=srgb",
    "--force-device-scale-factor=1",
)


def find_browser() -> str | None:
    """The path of a browser of this family, if there is one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Chromium:
    """A browser without a window."""

    def __init__(self, program: str, folder: Path) -> None:
        self._folder, self._buffer, self._count, self._pages = folder, b"", 0, 0
        self.events: list[dict[str, Any]] = []
        (to_read, self._write), (self._read, to_write) = os.pipe(), os.pipe()
        # Away from 3 and 4, where the browser expects them, so that neither covers the other.
        ends = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (to_read, to_write)]
        log = os.open(folder / "browser.log", os.O_CREAT | os.O_WRONLY, 0o600)
        log = fcntl.fcntl(log, fcntl.F_DUPFD_CLOEXEC, 10)
        command = [
            *(program, *_SWITCHES, "--remote-debugging-pipe"),
            *(f"--user-data-dir={folder / 'profile'}", "about:blank"),
        ]
        self._process = os.posix_spawn(
            program,
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, ends[0], 3),
                (os.POSIX_SPAWN_DUP2, ends[1], 4),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
        )
        for each in (to_read, to_write, *ends, log):
            os.close(each)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = None
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol; events that come before it are kept."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if session := getattr(self, "_session", None):
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
            more = os.read(self._read, 1 << 20) if ready else b""
            if not more:
                log = (self._folder / "browser.log").read_text(errors="replace")
                raise RuntimeError(f"Chromium does not answer: {log[-2000:]}")
            self._buffer += more
        text, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def open(
        self, page: str, *, width: int = 1000, height: int = 900, theme: str = "light"
    ) -> None:
        """Show a page, in a window of so many pixels and a system of this theme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.media("", theme)
        self._pages += 1
        file = self._folder / f"page-{self._pages}.html"
        file.write_text(page, encoding="utf-8")
        self.events.clear()
        self.call("Page.navigate", url=file.as_uri())
        while not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            self.events.append(self._next())
        file.unlink()

    def media(self, medium: str, theme: str) -> None:
        """Show pages as on this medium, "" for a screen."""
        features = [
            {"name": "prefers-color-scheme", "value": theme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def run(self, script: str) -> Any:
        """The value of an expression, as JSON has it; promises are waited for.

        Raises:
            RuntimeError: the script threw.
        """
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"]
            raise RuntimeError(thrown.get("exception", {}).get("description", thrown["text"]))
        return answer["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key and let it go."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}.get(key, (0, ""))
        code = code or {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[key]
        pressed: Mapping[str, Any] = {
            "key": key,
            "code": "Space" if key == " " else key,
            "windowsVirtualKeyCode": code,
            "modifiers": 8 if shift else 0,
        }
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **pressed, **down)
        self.call("Input.dispatchKeyEvent", **pressed, type="keyUp")

    def picture(self, box: Mapping[str, float] | None = None, scale: float = 1) -> bytes:
        """A PNG file of the window, or of a part of the page that is in it, at a scale."""
        clip: dict[str, Any] = {}
        if box is not None:
            clip = {"clip": {**box, "scale": scale}}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        return base64.b64decode(data)

    def complaints(self) -> list[str]:
        """Errors and warnings since the page was opened, of scripts and of the browser."""
        found = []
        for each in self.events:
            told = each.get("params", {})
            if each.get("method") == "Runtime.exceptionThrown":
                details = told["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif each.get("method") == "Runtime.consoleAPICalled":
                found.append(f"console.{told['type']}: {told['args']}")
            elif each.get("method") == "Log.entryAdded":
                found.append(told["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened, its own first."""
        return [
            each["params"]["request"]["url"]
            for each in self.events
            if each.get("method") == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        """End the browser, and wait until it has ended."""
        with contextlib.suppress(RuntimeError, OSError):
            self._session = None
            self.call("Browser.close")
        end = time.monotonic() + 10
        while os.waitpid(self._process, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)
                break
            time.sleep(0.02)
        os.close(self._write)
        os.close(self._read)


@contextlib.contextmanager
def chromium(program: str, folder: Path) -> Iterator[Chromium]:
    """A browser that is closed in the end; its files are in the folder."""
    browser = Chromium(program, folder)
    try:
        yield browser
    finally:
        browser.close()
