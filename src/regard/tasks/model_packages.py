"""Model packages: trained models that installed packages ship, found by their names wherever a run's folder is wanted.

A package names itself in the entry point group `regard.models`; each folder in it that holds a run is a model:

    [project.entry-points."regard.models"]
    regard-models = "regard_models"              # of src/regard_models/en-fr/settings.toml, model.safetensors, …

Nothing of a package is executed. It is looked for only when a name is asked for that is no folder here.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

GROUP, OUR_PACKAGE = "regard.models", "regard-models"
MODEL_CARD = (
    "card.md"  # what a model is and was measured to do, in the folder of a run; without one, README.md of an export
)
SETTINGS_FILE = "settings.toml"
NAME = re.compile(r"\w[\w.-]*")
DIRECTION = re.compile(r"([a-z]{2})[-_ ]?(?:to[-_ ]?)?([a-z]{2})")  # of two languages, however it is written
FRONT_MATTER = re.compile(r"^---\n(.*?\n)---\n", re.DOTALL)
BLEU = re.compile(r"\bBLEU\b[ :=*]{1,5}(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class PackagedModel:
    """A model that an installed package ships.

    Args:
        name: of its folder.
        package: the distribution's name, as of the entry point.
    """

    name: str
    package: str
    folder: Path

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    @property
    def card(self) -> str:
        """The text of its card; "" if it has none."""
        paths = (self.folder / name for name in (MODEL_CARD, "README.md"))
        return next((path.read_text(encoding="utf-8") for path in paths if path.is_file()), "")

    def describe(self) -> dict[str, Any]:
        """Name, task, languages, size, and what its card says of BLEU and of the licence."""
        settings = tomllib.loads((self.folder / SETTINGS_FILE).read_text(encoding="utf-8"))
        data, card = settings.get("data", {}), self.card
        languages = " → ".join(str(data[side]) for side in ("source", "target") if data.get(side))
        return {
            "name": self.name,
            "task": settings.get("task", "translation"),
            "languages": languages if settings.get("task", "translation") == "translation" else "",
            "bytes": self.size,
            "bleu": card_bleu(card),
            "licence": card_licence(card),
            "package": self.package,
            "folder": str(self.folder),
        }


def packaged_models() -> list[PackagedModel]:
    """All models of all installed packages, by name."""
    return sorted(iterate_packages(), key=lambda model: (model.name, model.package))


def iterate_packages() -> Iterator[PackagedModel]:
    for point in entry_points(group=GROUP):
        for place in package_folders(point.module):
            for settings in place.glob(f"*/{SETTINGS_FILE}"):
                yield PackagedModel(settings.parent.name, point.name, settings.parent)


def package_folders(module: str) -> list[Path]:
    """Where a package lies; none if it was removed without its entry point."""
    try:
        spec = find_spec(module)
    except ImportError:
        return []
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]


def resolve_model(run: str | Path) -> Path:
    """The folder of a run: the one at this path, or else that of the packaged model of this name.

    A folder in the working directory comes before a model of its name.

    Examples:
        >>> resolve_model("run")
        PosixPath('run')
        >>> resolve_model("en-xx")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: en-xx holds no model: it is neither a folder here nor the name of an installed one; ...
    """
    path = Path(run)
    if path.exists() or path.is_symlink() or not NAME.fullmatch(str(run)):
        return path
    models = packaged_models()
    found = [model for model in models if model.name == str(run)]
    if len(found) == 1:
        return found[0].folder
    if found:
        packages = " and ".join(model.package for model in found)
        raise ValueError(f"{packages} both ship a model {run}; give the folder of one, such as {found[0].folder}")
    why = "it is neither a folder here nor the name of an installed one"
    raise ValueError(f"{run} holds no model: {why}; {remedy(str(run), models)}")


def shortest_name(folder: Path) -> str:
    """What to write for a run: the name of a packaged model, or its folder."""
    return next((model.name for model in packaged_models() if model.folder == folder), str(folder))


def find_model(name: str) -> PackagedModel:
    """The packaged model of a name."""
    models = packaged_models()
    if found := [model for model in models if model.name == name]:
        return found[0]
    raise ValueError(f"no installed package has a model {name!r:.80}; {remedy(name, models)}")


def remedy(name: str, models: list[PackagedModel]) -> str:
    """What to do instead: the models that are there, two one after the other, how to get ours, how to make one."""
    names = list(dict.fromkeys(model.name for model in models))
    direction = DIRECTION.fullmatch(name.lower())
    way = find_way(direction[1], direction[2], names) if direction else None
    written = f"{direction[1]}-{direction[2]}" if direction else ""
    close = [written] if written in names else get_close_matches(name.lower(), names, 1, 0.5)
    parts = [f"did you mean {close[0]}?"] if close and not way else []
    parts += [f"in two steps: regard translate {way[0]} FILE | regard translate {way[1]}"] if way else []
    parts += [f"there are {', '.join(names)}"] if names else []
    if OUR_PACKAGE not in {model.package for model in models}:
        parts.append(f"pip install {OUR_PACKAGE} brings translators")
    return f"{'; '.join(parts) or 'choose one of them'}; or train one: regard train --out {name}"


def find_way(source: str, target: str, names: list[str]) -> tuple[str, str] | None:
    """Two models that translate by way of a third language.

    Examples:
        >>> find_way("fr", "de", ["de-en", "en-de", "fr-en"])
        ('fr-en', 'en-de')
    """
    ways = (
        (first, f"{first.removeprefix(f'{source}-')}-{target}") for first in names if first.startswith(f"{source}-")
    )
    return next((way for way in ways if way[1] in names and way[0] != f"{source}-{target}"), None)


# --- cards ---


def card_fields(card: str) -> dict[str, str]:
    """The `key: value` lines between the two --- at the beginning of a card.

    Examples:
        >>> card_fields('---\\nlicense: "CC BY 2.0 FR"\\nbleu: 49.5\\n---\\n# en-fr')
        {'license': 'CC BY 2.0 FR', 'bleu': '49.5'}
    """
    found = FRONT_MATTER.match(card)
    lines = found[1].splitlines() if found else []
    pairs = (line.partition(":") for line in lines if ":" in line and not line.startswith((" ", "-")))
    return {key.strip(): value.strip().strip('"') for key, _, value in pairs if value.strip()}


def card_licence(card: str) -> str:
    fields = card_fields(card)
    return fields.get("license") or fields.get("licence") or ""


def card_bleu(card: str) -> float | None:
    """Of the first test set that a card names: its field `bleu`, the first number in a column BLEU, or after the word.

    Examples:
        >>> card_bleu("| test set | sentences | BLEU |\\n| --- | --- | --- |\\n| tatoeba | 4,000 | 49.5 |")
        49.5
        >>> card_bleu("On 4,000 sentences it has BLEU 49.5 (chrF 68.1).")
        49.5
    """
    if number := first_number(card_fields(card).get("bleu", "")):
        return number
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in card.splitlines() if "|" in line]
    for header, row in ((n, row) for n, row in enumerate(rows) if "BLEU" in row):
        column = row.index("BLEU")
        values = (first_number(below[column]) for below in rows[header + 1 :] if len(below) > column)
        if value := next(filter(None, values), None):
            return value
    found = BLEU.search(card)
    return float(found[1]) if found else None


def first_number(text: str) -> float | None:
    found = re.search(r"\d+(?:\.\d+)?", text)
    return float(found[0]) if found else None
