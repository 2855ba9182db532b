"""The built documentation, as a reader meets it: in a browser, with nothing but the site itself.

``nox -s browser`` builds the site and runs this with Playwright and a Chromium of the machine; elsewhere it is skipped.
"""

import functools
import http.server
import os
import shutil
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest

SITE = Path(folder) if (folder := os.environ.get("ETP_SITE")) else None
NAMES = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
BROWSER = os.environ.get("CHROME") or next(filter(None, map(shutil.which, NAMES)), None)
PAGES = sorted(str(page.relative_to(SITE)) for page in SITE.glob("**/*.html")) if SITE else ["index.html"]
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
A_PAGE, A_NOTEBOOK = "installation.html", "tutorials/quickstart.html"

pytestmark = pytest.mark.skipif(
    SITE is None, reason="needs the built site: nox -s browser, or ETP_SITE=docs/_build/html"
)


class _Page(HTMLParser):
    """The anchors of a page and what it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        self.links |= {found[key] for key in ("href", "src") if found.get(key)}


@functools.cache
def read(page: str) -> _Page:
    return _Page(SITE / page)


@pytest.fixture(scope="module")
def site():
    """The address of the site, served from this machine."""
    handler = functools.partial(_Quiet, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: nox -s browser")
    if BROWSER is None:
        pytest.skip(f"no browser: install Chromium (one of {', '.join(NAMES)} on the path) or set CHROME to its path")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser, request):
    """A tab, and everything that it complains about."""
    page = browser.new_page(viewport=getattr(request, "param", DESK))
    page.complaints = []
    page.on("console", lambda m: m.type in ("error", "warning") and page.complaints.append(m.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    aborted = "net::ERR_ABORTED"  # the page was left before an icon had come
    page.on("requestfailed", lambda r: r.failure != aborted and page.complaints.append(f"{r.failure}: {r.url}"))
    page.on("response", lambda r: r.status >= 400 and page.complaints.append(f"{r.status}: {r.url}"))
    yield page
    page.close()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_within_the_site_leads_somewhere(page):
    broken = []
    for link in sorted(read(page).links):
        target, anchor = urldefrag(urljoin(page, link))
        if "://" in link or link.startswith(("mailto:", "data:", "javascript:")):
            continue
        path = unquote(target.partition("?")[0])
        missing = not (SITE / path).exists()
        if missing or (anchor and path.endswith(".html") and unquote(anchor) not in read(path).anchors):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES)
def test_no_page_shows_a_table_as_the_text_it_was_written_in(page):
    assert "|—|" not in (SITE / page).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_no_page_loads_anything_from_another_host(page):
    page_source = read(page)
    loaded = [link for link in page_source.links if "://" in link and link.endswith((".js", ".css", ".woff2", ".png"))]
    assert not loaded


@pytest.mark.parametrize("tab", [DESK, PHONE], ids=["desk", "phone"], indirect=True)
def test_every_page_fits_the_window_and_complains_of_nothing(tab, site):
    wide = {}
    for page in PAGES:
        tab.goto(site + page, wait_until="load")
        excess = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if excess > 1:
            wide[page] = excess
    assert not wide, "pixels beyond the window's width"
    assert not tab.complaints


def test_the_start_page_leads_to_the_quickstart(tab, site):
    tab.goto(site)
    assert "etp-suite" in tab.title()
    tab.get_by_role("link", name="Quickstart").first.click()
    tab.wait_for_url("**/quickstart.html")
    assert tab.get_by_role("heading", name="Quickstart").is_visible()


def test_a_notebook_page_shows_code_and_what_it_printed(tab, site):
    tab.goto(site + A_NOTEBOOK)
    assert "etp.compile" in tab.locator(".cell_input").all_inner_texts()[2]
    assert any("exact" in text for text in tab.locator(".cell_output").all_inner_texts())


def test_formulas_are_set(tab, site):
    tab.goto(site + "concepts/gradient.html")
    tab.wait_for_selector("mjx-container")
    assert tab.locator("mjx-container").count() > 10


@pytest.mark.parametrize("tab", [DESK, PHONE], ids=["desk", "phone"], indirect=True)
@pytest.mark.parametrize("word", ["matmul", "braintrace", "predictive"])
def test_the_search_finds(word, tab, site):
    tab.goto(f"{site}search.html?q={word}")
    tab.wait_for_selector("#search-results li a")
    assert tab.locator("#search-results li a").count() > 0
    assert not tab.complaints


@pytest.mark.parametrize("tab", [PHONE], ids=["phone"], indirect=True)
def test_on_a_phone_the_text_is_large_enough_and_the_menu_opens(tab, site):
    tab.goto(site + A_PAGE)
    size = tab.evaluate("parseFloat(getComputedStyle(document.querySelector('article p')).fontSize)")
    assert size >= 14
    tab.locator(".mobile-header .nav-overlay-icon").first.click()
    entry = tab.locator(".sidebar-tree a").first
    entry.wait_for(state="visible")
    assert entry.is_visible()
