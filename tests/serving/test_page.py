"""The page, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from chromium import Page
from served import Served, new_models, served

from mmspec.serving.page import POLICY
from mmspec.serving.settings import ServerSettings

READY = "document.documentElement.dataset.ready"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(new_models()) as running:
        yield running


def test_the_page_names_nothing_from_elsewhere(server: Served) -> None:
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        status, headers, content = server.request(path)
        assert status == 200 and headers["content-type"].startswith(kind)
        assert headers["content-security-policy"] == POLICY and headers["x-content-type-options"] == "nosniff"
        assert not re.search(rb"https?:|//[a-z]+\.", content)
        assert b" style=" not in content and b"onclick" not in content
    assert "unsafe" not in POLICY and "'self'" in POLICY
    with served(new_models()[:1], ServerSettings(page=False)) as running:
        assert running.request("/")[0] == 404


def number(tab: Page, section: str, panel: int, name: str) -> float:
    """What a panel shows."""
    where = f"document.querySelectorAll('#{section} .panel')[{panel}].querySelector('[data-value={name}]').textContent"
    return float(tab.value(where))


@pytest.mark.browser
def test_an_image_appears_row_by_row_and_both_recipes_are_compared(tab: Page, server: Served) -> None:
    tab.open(server.address)
    tab.wait(READY)
    tab.value("window.seen = new Set()")
    watch = "new MutationObserver(() => { if (image.src) seen.add(image.src) }).observe(image, {attributes: true})"
    tab.value(f"image = document.querySelector('#image .stage img'); {watch}")
    # By keyboard: the prompt has the first place in the order of tabs, and Enter sends the form.
    tab.press("Tab", 9)
    assert tab.value("document.activeElement.name") == "text"
    tab.value("document.activeElement.select()")
    tab.type("a green star")
    tab.press("Enter", 13, "\r")
    tab.wait("document.querySelector('#image .verdict').textContent")
    assert tab.value("seen.size") >= 5
    assert tab.value("image.naturalWidth") == 64
    assert number(tab, "image", 0, "calls") < number(tab, "image", 1, "calls") == 256
    assert number(tab, "image", 0, "rate") > 2 > number(tab, "image", 1, "rate") == 1
    assert number(tab, "image", 0, "seconds") > 0
    verdict = tab.value("document.querySelector('#image .verdict').textContent")
    assert re.match(r"[\d.]+x fewer target calls: \d+ instead of 256", verdict) and "same distribution" in verdict
    tab.value(
        "lights = document.querySelector('#image .lights'); "
        "copy = new OffscreenCanvas(64, 64).getContext('2d', {willReadFrequently: true}); "
        "lit = () => { copy.drawImage(lights, 0, 0, 64, 64); "
        "return copy.getImageData(0, 0, 64, 64).data.some((one) => one) }"
    )
    # Replayed in slow motion, the tokens of one call light up.
    tab.value("document.querySelector('[name=replay]').click()")
    tab.wait("lit()")
    tab.wait("document.querySelectorAll('#image [data-value=calls]')[1].textContent === '256'")
    assert tab.console == []
    assert all(url.startswith((server.address, "data:")) for url in tab.requested)


@pytest.mark.browser
def test_speech_sounds_while_it_is_made(tab: Page, server: Served) -> None:
    tab.open(server.address)
    tab.wait(READY)
    tab.value("document.querySelector('#speech [name=text]').focus()")
    tab.press("Enter", 13, "\r")  # a key of the user, without which browsers stay silent
    tab.wait("document.querySelector('#speech [data-value=first]').textContent !== '–'")
    tab.wait("player.sources.length >= 2")
    assert tab.value("player.context.state") == "running"
    tab.wait("document.querySelector('#speech .verdict').textContent")
    assert number(tab, "speech", 0, "calls") * 2 < number(tab, "speech", 1, "calls")
    assert number(tab, "speech", 0, "first") <= number(tab, "speech", 0, "seconds") + 0.5
    assert tab.console == []


@pytest.mark.browser
def test_escape_stops_and_errors_are_shown(tab: Page, server: Served) -> None:
    tab.open(server.address)
    tab.wait(READY)
    tab.value("document.querySelector('#image form').requestSubmit()")
    tab.wait("document.querySelectorAll('#image [data-value=calls]')[1].textContent > 3")
    tab.value("document.querySelector('#image [name=stop]').focus()")
    tab.press("Escape", 27)
    tab.wait("document.querySelector('#image').getAttribute('aria-busy') === 'false'")
    server.wait_idle()
    assert number(tab, "image", 1, "calls") < 256
    tab.value("document.querySelector('#image [name=text]').value = 'a blue whale'")
    tab.value("document.querySelector('#image form').requestSubmit()")
    tab.wait("!document.getElementById('fault').hidden")
    assert "whale" in tab.value("document.getElementById('fault').textContent")


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(400, False), (400, True), (1280, False), (3840, True)])
def test_the_page_fits_small_and_large_windows(tab: Page, server: Served, width: int, dark: bool) -> None:
    tab.open(server.address, width, 1000, dark)
    tab.wait(READY)
    assert tab.value("document.documentElement.scrollWidth") <= width
    red, green, blue = map(int, re.findall(r"\d+", tab.value("getComputedStyle(document.body).backgroundColor"))[:3])
    assert (red + green + blue < 200) == dark
    unlabelled = "[...document.querySelectorAll('input, select')].filter((one) => !one.labels.length).length"
    assert tab.value(unlabelled) == 0
    smallest = (
        "Math.min(...[...document.querySelectorAll('button')].filter((b) => b.offsetHeight).map((b) => b.offsetHeight))"
    )
    assert tab.value(smallest) >= 40
    assert tab.console == []


@pytest.mark.browser
def test_a_key_unlocks_the_page(tab: Page) -> None:
    with served(new_models()[:1], ServerSettings(api_keys=("a-long-key",))) as running:
        tab.open(running.address)
        tab.wait("document.getElementById('fault').textContent.includes('API key')")
        tab.value("document.querySelector('details').open = true; document.getElementById('key').focus()")
        tab.type("a-long-key")
        tab.press("Enter", 13, "\r")
        tab.wait(READY)
        tab.value("document.querySelector('#image form').elements.compare.checked = false")
        tab.value("document.querySelector('#image form').requestSubmit()")
        tab.wait("!document.querySelector('#image .replay').hidden")
