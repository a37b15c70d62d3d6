"""A headless Chromium, spoken to by its DevTools protocol: as much of it as the test of the site needs."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.request import urlopen

import websocket


class PageLeft(Exception):
    """The page that was asked has been left for another."""


class Browser:
    """One page of a Chromium of its own, ended with the block.

    executable: path of the browser. profile: an empty directory.
    """

    def __init__(self, executable: str, profile: Path, patience: float = 120.0) -> None:
        self.patience = patience
        self.requested: list[str] = []
        self.logged: list[str] = []
        self.number = 0
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            "--no-first-run",
        ]
        self.process = subprocess.Popen(
            [executable, *flags, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        chosen = profile / "DevToolsActivePort"
        end = time.monotonic() + patience
        while not (chosen.exists() and chosen.read_text().count("\n")) and time.monotonic() < end:
            time.sleep(0.1)
        port = chosen.read_text().splitlines()[0]
        with urlopen(f"http://127.0.0.1:{port}/json") as answer:
            page = next(each for each in json.load(answer) if each["type"] == "page")
        self.socket = websocket.create_connection(
            page["webSocketDebuggerUrl"], suppress_origin=True, timeout=patience
        )
        for room in ("Page", "Runtime", "Network"):
            self.command(f"{room}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait()

    #: what is said of a question that a page was left under
    LEFT = "Inspected target navigated or closed"

    def command(self, method: str, **settings: Any) -> dict[str, Any]:
        """The answer to a command; what the page asks for is kept in ``requested``, its complaints in ``logged``."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": settings}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("method") == "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])
            if message.get("method") == "Log.entryAdded":
                self.logged.append(message["params"]["entry"]["text"])
            if message.get("method") == "Runtime.exceptionThrown":
                self.logged.append(str(message["params"]["exceptionDetails"]))
            if message.get("id") == self.number:
                if message.get("error", {}).get("message") == self.LEFT:
                    raise PageLeft
                assert "error" not in message, message["error"]
                return dict(message["result"])

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is worth in the page."""
        found = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """The value of an expression as soon as it is true, on the page that a click leads to if it is asked before."""
        end = time.monotonic() + self.patience
        while True:
            with suppress(PageLeft):
                if found := self.value(expression):
                    return found
            assert time.monotonic() < end, f"{expression}: not true after {self.patience:.0f} s"
            time.sleep(0.1)

    def open(self, address: str) -> None:
        """Go to a page, and wait until it is there."""
        self.command("Page.navigate", url=address)
        self.until(f"document.readyState == 'complete' && location.href.startsWith({json.dumps(address)})")

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        """The size of the window, in CSS pixels."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
