"""The page of `towerpack serve` in a real browser."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import served_model
from served_model import png, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs the program chromium")
DROP = """(base64) => {
    const bytes = Uint8Array.from(atob(base64), c => c.charCodeAt(0)), files = new DataTransfer();
    files.items.add(new File([bytes], "bright.png", {type: "image/png"}));
    document.dispatchEvent(new DragEvent("drop", {dataTransfer: files, cancelable: true}));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 390, "height": 800})  # a phone
    page.set_default_timeout(20_000)
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    yield page
    page.close()
    assert failures == []


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light")
    served_model.export(folder, 1)
    return folder


def choose(page: Page, name: str, content: bytes) -> None:
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": content})


def test_pictures_are_answered_also_when_one_of_them_is_none(page: Page, exported: Path) -> None:
    with serving(exported) as (url, _):
        page.goto(url)
        expect(page.locator("#about")).to_have_text("version 1, classification, 3 classes")
        choose(page, "bright.png", png(40, 30, 250))
        expect(page.locator("article h2").first).to_have_text("bright")
        expect(page.locator("article dt").first).to_have_text("bright")
        choose(page, "notes.png", b"no picture")
        expect(page.locator("article .wrong")).to_contain_text("cannot read this image")
        choose(page, "dark.png", png(40, 30, 5))
        expect(page.locator("article h2").first).to_have_text("dark")
        assert page.locator("article").count() == 3
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, "the page is wider than a phone"


def test_a_dropped_picture_is_answered(page: Page, exported: Path) -> None:
    with serving(exported) as (url, _):
        page.goto(url)
        expect(page.locator("#drop")).to_be_visible()
        page.evaluate(DROP, base64.b64encode(png(40, 30, 250)).decode())
        expect(page.locator("article h2")).to_have_text("bright")


def test_a_wrong_token_asks_again(page: Page, exported: Path) -> None:
    with serving(exported, "--token", "right") as (url, _):
        page.goto(url)
        for token, about in (("wrong", "Bearer TOKEN"), ("right", "version 1")):
            page.fill("#token", token)
            page.click("#ask button")
            expect(page.locator("#about")).to_contain_text(about)
            expect(page.locator("#ask")).to_be_visible(visible=token == "wrong")


def test_a_server_that_is_gone_is_reported(page: Page, exported: Path) -> None:
    with serving(exported) as (url, process):
        page.goto(url)
        expect(page.locator("#drop")).to_be_visible()
        process.kill()
        process.wait()
        choose(page, "bright.png", png(40, 30, 250))
        expect(page.locator("article .wrong")).not_to_be_empty()
