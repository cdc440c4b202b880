"""The page at /, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adapted_model import adapted, write_images
from browser import CHROMIUM, Browser
from serving import Service, serving

from autodial.deploy import Predictor

pytest.importorskip("starlette")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def path(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapted(model.path, tmp_path_factory.mktemp("adapted"))


@pytest.fixture(scope="module")
def service(path: Path) -> Iterator[Service]:
    with serving(path, "--quiet") as service:
        yield service


def test_pictures_get_their_labels_and_the_unlike_one_is_named(path: Path, service: Service, tmp_path: Path) -> None:
    files = [*write_images(tmp_path / "alike", 2, 7), *write_images(tmp_path / "dark", 1, 8, level=15, noise=5)]
    files = [file.rename(tmp_path / f"{i}.png") for i, file in enumerate(files)]
    (tmp_path / "broken.png").write_bytes(b"no picture")
    labels = Predictor(path, "cpu").predict(files).labels
    with Browser(tmp_path / "profile", width=400) as browser:
        browser.open(service.address + "/")
        browser.wait_for("document.querySelector('#model').value === 'model'")
        browser.choose_files("#files", *files, tmp_path / "broken.png")
        browser.wait_for("document.querySelectorAll('#results > li').length === 4")
        found = browser.run("[...document.querySelectorAll('#results .best')].map((node) => node.textContent)")
        assert found == labels
        unlike = browser.run(
            "[...document.querySelectorAll('#results > li')].map((node) => node.querySelector('.unlike') !== null)"
        )
        assert unlike == [False, False, True, False]
        assert "not an image" in browser.run("document.querySelectorAll('#results > li')[3].textContent")
        assert "unlike the images" in browser.run("document.querySelector('#status').textContent")
        # nothing sticks out at 400 pixels
        assert browser.run("document.documentElement.scrollWidth") <= 400
        assert browser.run("document.activeElement.id") == "results-title"
        meters = [name for role, name in browser.accessible() if role == "meter"]
        assert len(meters) == 12 and all("%" in name for name in meters)
        assert not browser.errors


def test_by_keyboard_and_for_a_screen_reader(service: Service, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open(service.address + "/")
        browser.wait_for("document.querySelector('#model').options.length === 1")
        reached = []
        for _ in range(4):
            browser.press("Tab")
            reached.append(browser.run("document.activeElement.id || document.activeElement.textContent"))
        assert reached == ["files", "model", "Label the pictures", "How programs talk to this service"]
        named = browser.accessible()
        assert any(role == "heading" and name == "Labels for images" for role, name in named)
        assert any(name.startswith("Pictures") for _, name in named)
        assert ("button", "Label the pictures") in named
        browser.run("document.querySelector('button').focus()")
        browser.press("Enter")
        browser.wait_for("document.querySelector('#status').textContent === 'Choose a picture first.'")
        assert browser.run("document.activeElement.id") == "files"


def test_the_page_asks_for_the_key(path: Path, tmp_path: Path) -> None:
    (file,) = write_images(tmp_path / "image", 1, 9)
    with serving(path, "--quiet", AUTODIAL_SERVE_KEY="sesame") as service, Browser(tmp_path / "profile") as browser:
        browser.open(service.address + "/")
        browser.wait_for("!document.querySelector('#key-row').hidden")
        browser.run("document.querySelector('#key').value = 'sesame'")
        browser.choose_files("#files", file)
        browser.wait_for("document.querySelectorAll('#results > li').length === 1")


def test_the_documentation_shows_the_routes(service: Service, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile", width=400) as browser:
        browser.open(service.address + "/docs")
        browser.wait_for("document.querySelectorAll('section').length > 10")
        assert f"{service.address}/v2/models/model/infer" in browser.run(
            "document.querySelector('#example').textContent"
        )
        assert browser.run("document.documentElement.scrollWidth") <= 400
        assert not browser.errors
