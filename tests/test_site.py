"""The site of docs/: it asks no other server for anything, its links lead somewhere, and it is built strictly."""

import importlib.util
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent


def load_builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build_site.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build_site = load_builder()


def write_pages(folder: Path, **pages: str) -> Path:
    for name, text in pages.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


CLEAN = """<link rel="stylesheet" href="own.css"><link rel="canonical" href="https://example.org/here">
<h1 id="top">Top</h1><a href="https://example.org">out</a><a href="#top">up</a><img src="data:image/gif;base64,R0lG">"""


def test_a_page_may_lead_elsewhere_and_load_what_is_beside_it(tmp_path):
    css = "body { background: url(data:image/gif;base64,R0lG) } @import 'other.css';"
    assert not list(build_site.faults(write_pages(tmp_path, index_html=CLEAN, own_css=css)))


@pytest.mark.parametrize(
    "foreign",
    [
        '<script src="https://example.org/a.js"></script>',
        '<script src="//example.org/a.js"></script>',
        '<img src="http://example.org/a.png">',
        '<img srcset="own.css 1x, https://example.org/a.png 2x">',
        '<iframe src="https://example.org"></iframe>',
        '<link rel="stylesheet" href="https://example.org/a.css">',
        '<link rel="preconnect" href="https://example.org">',
        '<p style="background: url(https://example.org/a.png)">',
    ],
)
def test_a_request_to_another_server_is_found(foreign, tmp_path):
    (found,) = build_site.faults(write_pages(tmp_path, index_html=CLEAN + foreign, own_css=""))
    assert found.startswith("index.html: loads ")
    assert found.endswith(" from another server")


@pytest.mark.parametrize("css", ["@import 'https://example.org/a.css';", "@font-face{src:url(//example.org/a.woff)}"])
def test_a_request_of_a_style_sheet_is_found(css, tmp_path):
    (found,) = build_site.faults(write_pages(tmp_path, index_html=CLEAN, own_css=css))
    assert found.startswith("own.css: loads ")


@pytest.mark.parametrize("broken", ['<a href="gone.html">', '<a href="#gone">', '<a href="index.html#gone">'])
def test_a_link_to_nothing_is_found(broken, tmp_path):
    (found,) = build_site.faults(write_pages(tmp_path, index_html=CLEAN + broken, own_css=""))
    assert "leads to" in found


def test_a_link_to_a_source_leads_to_a_page_that_shows_it(tmp_path):
    build_site.prepare(tmp_path / "pages")
    lesson = (tmp_path / "pages" / "1-attention.md").read_text()
    assert "](source/src/regard/attention/score.py.md)" in lesson
    assert "](../src" not in lesson
    shown = (tmp_path / "pages" / "source" / "src" / "regard" / "attention" / "score.py.md").read_text()
    assert (ROOT / "src" / "regard" / "attention" / "score.py").read_text() in shown
    assert "::: regard.attention.attend\n" in (tmp_path / "pages" / "reference" / "attention.md").read_text()


def nav_pages(entries: list) -> list[str]:
    found = []
    for one in entries:
        value = next(iter(one.values())) if isinstance(one, dict) else one
        found += nav_pages(value) if isinstance(value, list) else [value]
    return found


def test_every_page_is_in_the_navigation(tmp_path):
    build_site.prepare(tmp_path)
    pages = {str(page.relative_to(tmp_path)) for page in tmp_path.rglob("*.md")}
    config = (ROOT / "mkdocs.yml").read_text().replace("!!python/object/apply:pymdownx.slugs.slugify", "")
    listed = nav_pages(yaml.safe_load(config)["nav"])
    assert sorted(listed) == sorted(page for page in pages if not page.startswith("source/"))


# `make docs` builds and checks all of it; here it is opened in a browser besides
@pytest.fixture(scope="module", params=[pytest.param(one, marks=pytest.mark.slow) for one in ("opening", "whole")])
def site(request, tmp_path_factory) -> Path:
    """The site; in the short form of each package's reference and of each source only the beginning."""
    pytest.importorskip("mkdocs", reason="MkDocs is not installed; `make docs` installs it")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    text = build_site.CONFIG.read_text().replace("out/docs", f"{folder}/docs").replace("[src]", f"[{ROOT}/src]")
    (folder / "mkdocs.yml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "opening":
            names = build_site.public_names
            patch.setattr(build_site, "MAX_SHOWN_BYTES", 500)
            patch.setattr(build_site, "public_names", lambda package: names(package)[:3])
        assert build_site.build(folder / "docs", folder / "site", folder / "mkdocs.yml") == 0
    return folder / "site"


def test_the_site_is_built_strictly(site):
    name = build_site.public_names(build_site.read_module("regard.attention"))[0]
    assert f'id="regard.attention.{name}"' in (site / "reference" / "attention.html").read_text()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


def test_a_browser_that_opens_the_site_asks_no_other_server(site):
    """What scripts fetch cannot be read from the pages, so a browser opens some, and searches."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no Chromium; `make browser` installs it")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    requests: list[str] = []
    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.on("request", lambda request: requests.append(request.url))
        for name in ("index.html", "1-attention.html", "reference/attention.html", "gallery.html"):
            page.goto(home + name)
            page.wait_for_load_state("networkidle")
        page.goto(f"{home}index.html?q=sparsemax")  # the search is in the page itself
        page.wait_for_selector(".md-search-result__item")
        browser.close()
    server.shutdown()
    server.server_close()
    assert any(one.endswith("search_index.json") for one in requests)
    assert [one for one in requests if not one.startswith((home, "data:", "blob:"))] == []
