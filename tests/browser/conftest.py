"""A real Chromium, and a feed to look at: a writer, a shuffle of two members, and its page, each as
people run them. Pictures of what was seen are kept in artifacts/browser."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from penstock.journal import Collection, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selenium.webdriver.remote.webelement import WebElement

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "artifacts" / "browser"
COMMAND = str(Path(sys.executable).with_name("penstock"))
WAIT_SECONDS_MAX = 120.0
NOTHING_TO_INSTALL_WITH = 3
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip


@pytest.fixture(scope="session")
def chromium() -> tuple[str, str]:
    found = subprocess.run(
        [ROOT / "scripts" / "chromium"], capture_output=True, text=True, check=False
    )
    if found.returncode == NOTHING_TO_INSTALL_WITH:
        pytest.skip(found.stderr)
    if found.returncode:
        pytest.fail(found.stderr)
    browser, driver = found.stdout.split()
    return browser, driver


class Page:
    """The page in a browser, as somebody sees it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """All of it, shown or not: '' if there is no such part."""
        found = self.driver.execute_script(
            "return document.querySelector(arguments[0])?.textContent ?? ''", selector
        )
        return str(found)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 0.0) -> None:
        deadline = time.monotonic() + (seconds or WAIT_SECONDS_MAX)
        while not condition():
            if time.monotonic() > deadline:
                self.picture("failed")
                raise AssertionError(f"the page does not show {what}: {self.text('main')[:600]}")
            time.sleep(0.05)

    def until_text(self, selector: str, words: str, seconds: float = 0.0) -> None:
        self.until(lambda: words in self.text(selector), f"{words!r} in {selector}", seconds)

    def picture(
        self, name: str, width: int = 1440, height: int = 1000, theme: str = "light"
    ) -> Path:
        """Of a window of this size."""
        self.theme(theme)
        self.size(width, height)
        time.sleep(1.2)  # the plots are drawn once a second
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        path = ARTIFACTS / f"{name}.png"
        self.driver.save_screenshot(str(path))
        return path

    def theme(self, theme: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def size(self, width: int, height: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def complaints(self) -> list[str]:
        """What the browser has to say against the page since the last time."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call] # it has no types
        return [f"{entry['level']}: {entry['message']}" for entry in entries]


@pytest.fixture(scope="module")
def page(chromium: tuple[str, str]) -> Iterator[Page]:
    options = webdriver.ChromeOptions()
    options.binary_location = chromium[0]
    profile = tempfile.mkdtemp(prefix="penstock-chromium-")
    for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1440,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromium[1]))
    try:
        yield Page(driver)
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


class Running:
    """A store that is written to, a feed of it, and the page's server."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.folder = folder / "feeds" / "orders"
        self.store = stack.enter_context(open_store(folder / "store", durability="buffered"))
        columns = "id BIGINT NOT NULL, region STRING, note STRING"
        self.store.create(Collection.define("orders", columns, "id", "region"))
        self._stopping = threading.Event()
        writing = threading.Thread(target=self._write, daemon=True)
        writing.start()
        stack.callback(writing.join)
        stack.callback(self._stopping.set)
        self.folder.mkdir(parents=True)
        self._shuffle = self._start(
            "shuffle", "--collection", "orders", "--members", "2", "--epoch-seconds", "0.5",
            "--folder", str(self.folder), "--follow", "--store", self.store.url,
        )  # fmt: skip
        self.web = self.serve()

    def serve(self) -> dict[str, str]:
        """Another server of the same feed; gives its address and token."""
        process = self._start("web", str(self.folder.parent), "--port", "0", "--json")
        assert process.stdout is not None
        return json.loads(process.stdout.readline()) | {"process": process}  # type: ignore[no-any-return]

    def state(self) -> Any:
        return json.loads((self.folder / "state.json").read_text())

    def stored(self) -> int:
        """Rows in all queues, ever."""
        return sum(member["queue"]["rows"] for member in self.state()["members"])

    def documents(self) -> int:
        """Consumed so far."""
        found = json.loads((self.folder / "consumer.json").read_text())
        return sum(each["documents"] for each in found["holdings"].values())

    def explain(self) -> str:
        done = subprocess.run(
            [COMMAND, "explain", str(self.folder)], capture_output=True, text=True, check=False
        )
        return done.stdout

    def producer(self, kind: str) -> Producer:
        return Producer(self.store.url, kind, self._stack)

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._stack.callback(_end, process)
        return process

    def _write(self) -> None:
        number = 0
        with self.store.producer("shop") as producer:
            while not self._stopping.wait(0.05):
                rows = [
                    {"id": number + n, "region": ("eu", "us", "apac")[n % 3], "note": "x" * 80}
                    for n in range(150)
                ]
                producer.append("orders", rows)
                number += len(rows)


class Producer:
    """tests/browser/producer.py, running."""

    def __init__(self, store: str, kind: str, stack: contextlib.ExitStack) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.browser.producer", store, kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        stack.callback(_end, self._process)
        self.id = self._line()

    def go_on(self) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with contextlib.ExitStack() as stack:
        made = Running(tmp_path_factory.mktemp("running"), stack)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not (made.folder / "consumer.json").exists():
            assert time.monotonic() < deadline, "the shuffle does not start"
            time.sleep(0.1)
        yield made


def kill(process: int) -> None:
    os.kill(process, 9)
