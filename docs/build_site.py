"""The site: prepares docs/ for MkDocs, builds it strictly, and checks the pages it wrote.

    python docs/build_site.py    writes out/docs (the pages, the API reference, the sources they link to) and out/site

A link from a page to a file outside docs/ leads to a page that shows the file, so that the site needs no other server.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
PAGES, SITE, CONFIG = ROOT / "out" / "docs", ROOT / "out" / "site", ROOT / "mkdocs.yml"
PACKAGES = ("attention", "data", "layers", "models", "training", "decode", "tasks", "interop", "see", "world")
LINK = re.compile(r"(\]\()(\.\.?/[^)#\s]+|[^):#\s]+)(#[^)\s]*)?(\))")
FENCE = "`" * 8
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".sh": "bash", ".md": "markdown"}
MAX_SHOWN_BYTES = 200_000
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "audio": "src", "video": "src"}
# rel of a <link> that makes a browser ask for its href
FETCHED = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "icon", "manifest"}
CSS_URL = re.compile(r"""@import\s+["']?([^"';)]+)|url\(\s*["']?([^"')]+)""")

# what an example may read: a corpus of two pairs, and a model that was trained on it for two steps
EXAMPLE_RUN = r"""with open("pairs.tsv", "w") as file:
    file.write("the cat sleeps\tle chat dort\na dog\tun chien\n" * 20)
settings = {"text.kind": "words", "batch_size": 64, "checkpoint_every": 1}
regard.train(train="pairs.tsv", out="run", size="tiny", steps=2, **settings)
"""
REFERENCE_OPENING = """# {module}

{docstring}

The examples begin with

```python
{imports}```

and those that read `pairs.tsv` or `run` with

```python
{run}```

"""


# --- the pages ---


def prepare(pages: Path = PAGES) -> None:
    """The folder that MkDocs reads: docs/ itself, the API reference, and the files that pages link to."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    linked: set[Path] = set()
    for page in sorted(pages.rglob("*.md")):
        page.write_text(link_sources(page.read_text("utf-8"), ROOT / "docs" / page.relative_to(pages), linked), "utf-8")
    for path in sorted(linked):
        target = pages / source_page(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(show_source(path), "utf-8")
    reference = pages / "reference"
    reference.mkdir()
    for name in ("", *PACKAGES):
        (reference / f"{name or 'regard'}.md").write_text(reference_page(name), "utf-8")


def link_sources(text: str, page: Path, linked: set[Path]) -> str:
    """The page's text; a link that leaves docs/ leads to the page that shows the file, which is added to `linked`."""

    def follow(found: re.Match[str]) -> str:
        opening, target, anchor, closing = found.groups(default="")
        path = (page.parent / target).resolve()
        if not path.is_relative_to(ROOT) or path.is_relative_to(ROOT / "docs") or not path.exists():
            return found[0]  # within docs/, or a broken link, at which the strict build fails
        linked.add(path)
        shown = os.path.relpath(ROOT / "docs" / source_page(path), page.parent)
        return f"{opening}{shown}{anchor}{closing}"

    return LINK.sub(follow, text)


def source_page(path: Path) -> Path:
    """Where the site shows a file or folder of the repository, relative to its pages."""
    return Path("source", f"{path.relative_to(ROOT)}.md")


def show_source(path: Path) -> str:
    """A page with the file's text, or with the folder's names."""
    opening = f"---\nsearch:\n  exclude: true\n---\n# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        return opening + "".join(f"- `{one.name}`\n" for one in sorted(path.iterdir()) if one.name[0] not in "._")
    text = path.read_bytes()[:MAX_SHOWN_BYTES].decode("utf-8", "ignore")
    return f"{opening}{FENCE}{LANGUAGES.get(path.suffix, 'text')}\n{text}\n{FENCE}\n"


def read_module(name: str) -> ast.Module:
    path = ROOT / "src" / name.replace(".", "/")
    file = path.with_suffix(".py")
    return ast.parse((file if file.is_file() else path / "__init__.py").read_text("utf-8"))


def public_names(package: ast.Module) -> list[str]:
    """The names in `__all__` of a package, read without importing anything."""
    for node in package.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError("a package of the reference has no __all__; list in it the names that are for users")


def example_imports(package: str) -> str:
    """What the examples of a package begin with; those of `regard` itself have the names of attention too."""
    return f"import regard\nimport torch\nfrom regard.{package or 'attention'} import *\n"


def reference_page(package: str) -> str:
    """The public names of a package in full, and what their examples begin with."""
    module = f"regard.{package}" if package else "regard"
    tree = read_module(module)
    opening = REFERENCE_OPENING.format(
        module=module,
        docstring=ast.get_docstring(tree),
        imports=example_imports(package),
        run=EXAMPLE_RUN,
    )
    names = sorted(public_names(tree), key=str.isupper)  # constants last, without their values
    hidden = "    options:\n      show_attribute_values: false\n"
    return opening + "".join(f"::: {module}.{name}\n{hidden if name.isupper() else ''}\n" for name in names)


# --- the check ---


class PageLinks(HTMLParser):
    """What a page loads, where it leads, and the anchors it has."""

    def __init__(self, text: str):
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in LOADING and LOADING[tag] in given:
            self.loads.append(given[LOADING[tag]])
        if tag == "link" and FETCHED & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        self.loads += [one.split()[0] for one in given.get("srcset", "").split(",") if one.strip()]
        self.loads += css_loads(given.get("style", ""))
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])


def css_loads(text: str) -> list[str]:
    """What a style sheet loads."""
    return [(imported or url).strip() for imported, url in CSS_URL.findall(text)]


def is_foreign(address: str) -> bool:
    """Whether a browser would ask another server for it."""
    return bool(urlsplit(address).netloc)


def faults(site: Path = SITE) -> Iterator[str]:
    """Every request to another server, and every link within the site that leads nowhere."""
    pages = {path: PageLinks(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site)
        yield from (f"{where}: loads {one} from another server" for one in page.loads if is_foreign(one))
        if where.name == "404.html":
            continue  # its links are from the root, since it may be shown for any address
        for target in (*page.loads, *page.leads):
            address = urlsplit(target)
            if address.scheme or address.netloc:
                continue
            file = (path.parent / unquote(address.path)).resolve() if address.path else path
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                yield f"{where}: leads to {target}, which is not there"
            elif address.fragment and file in pages and unquote(address.fragment) not in pages[file].anchors:
                yield f"{where}: leads to {target}, which has no such heading"
    for path in sorted(site.rglob("*.css")):
        yield from (
            f"{path.relative_to(site)}: loads {one} from another server"
            for one in css_loads(path.read_text("utf-8"))
            if is_foreign(one)
        )


def build(pages: Path = PAGES, site: Path = SITE, config: Path = CONFIG) -> int:
    """The pages that this configuration reads, and the site of them; 0 if nothing is wrong with it."""
    prepare(pages)
    # the warning is about a version of MkDocs that constraints.txt does not install
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(config)]
    if code := subprocess.run([*command, "--site-dir", str(site)], cwd=ROOT, env=environment).returncode:
        return code
    found, shown = list(faults(site)), os.path.relpath(site, ROOT)
    print("\n".join(found) or f"the site is in {shown}; open {shown}/index.html")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(build())
