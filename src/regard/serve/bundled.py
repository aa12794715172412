"""The page's files in; one HTML text out that loads nothing from anywhere: styles inlined, modules in an import map."""

import base64
import json
import posixpath
import re
import secrets
from importlib.resources import files
from typing import Any

NOWHERE = "http://regard.invalid/static/"  # where modules believe to be; nothing is ever asked of it
IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*|\bimport\()"(\.{1,2}/[^"]+\.js)"')
VIEWS = ("overview", "matrix", "lines", "alignment", "pair", "generation", "beam", "overlay")
FEWER = "\nVIEWS.splice(0, VIEWS.length, ...VIEWS.filter((view) => %s.includes(view.name)));\n"
INDEX, MAIN, SHIM = "js/views/index.js", "js/main.js", "js/embedded.js"


def bundled(data: dict[str, Any], title: str) -> str:
    """The page with its data inside."""
    modules = reachable()
    addresses = {f"regard/{name}": data_url("text/javascript", text) for name, text in modules.items()}
    imports = json.dumps({"imports": addresses})
    start = 'import "regard/js/main.js";'
    shim = file(SHIM)
    # whoever wrote a text that is shown cannot know it; what a script with it imports is let in as well
    nonce = secrets.token_urlsafe(16)
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src 'nonce-{nonce}'",
            "style-src 'unsafe-inline' data:",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    page = file("index.html")
    page = re.sub(r"\s*<link rel=\"stylesheet\"[^>]*>", "", page)
    page = re.sub(r"\s*<script\b.*?</script>", "", page, flags=re.DOTALL)
    page = re.sub(r"<title>.*?</title>", lambda _: f"<title>{escaped(title)}</title>", page)
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        *(f"<style>{text}</style>" for text in sheets()),
        f'<script type="application/json" id="regard-data">{inert(data)}</script>',
        f'<script type="importmap" nonce="{nonce}">{imports}</script>',
        f'<script nonce="{nonce}">{shim}</script>',
        f'<script type="module" nonce="{nonce}">{start}</script>',
    ]
    # the policy stands first: it holds for what follows it
    return re.sub(r"(<meta charset=[^>]*>)", lambda found: "\n".join([found[1], *head]), page, count=1)


def reachable() -> dict[str, str]:
    """Every module that the shown views need, its imports by name instead of by place."""
    found: dict[str, str] = {}
    waiting = [MAIN]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        text = file(name)
        if name == INDEX:
            text += FEWER % json.dumps(VIEWS)
        needs = [placed(name, there) for _, there in IMPORT.findall(text)]
        hidden = {f"js/views/{view}.js" for view in re.findall(r'name: "(\w+)"', text)} if name == INDEX else set()
        kept = {f"js/views/{view}.js" for view in VIEWS}
        waiting += [one for one in needs if (one not in hidden or one in kept) and exists(one)]
        text = text.replace("import.meta.url", json.dumps(NOWHERE + name))
        found[name] = IMPORT.sub(lambda way, name=name: f'{way[1]}"regard/{placed(name, way[2])}"', text)
    return found


def placed(module: str, there: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(module), there))


def sheets() -> list[str]:
    """All of them, the shell's first; what is not used costs little."""
    names = sorted(one.name for one in files("regard.serve").joinpath("page").iterdir() if one.name.endswith(".css"))
    found = [file(name) for name in sorted(names, key=lambda name: name != "style.css")]
    assert not any("</style" in text for text in found)
    return found


def file(name: str) -> str:
    return files("regard.serve").joinpath("page", *name.split("/")).read_text(encoding="utf-8")


def exists(name: str) -> bool:
    return files("regard.serve").joinpath("page", *name.split("/")).is_file()


def data_url(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def inert(data: dict[str, Any]) -> str:
    """JSON in which no token can end the script it stands in, or begin another."""
    signs = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
    return "".join(signs.get(sign, sign) for sign in json.dumps(data, allow_nan=False, separators=(",", ":")))


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
