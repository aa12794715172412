"""A scene, and perhaps the folder of its model, in; out, where a reader begins: a site, a head, and a cell of it."""

from dataclasses import dataclass
from pathlib import Path

from regard.decode.reading import best_head, look
from regard.see.scene import Scene
from regard.see.trace import Site
from regard.tasks.translate import Translator

MOST_CELLS = 2**22  # of all heads together that are compared; of a longer text the first head is shown
FIRST = 8  # queries among which one is looked for that may choose


@dataclass(frozen=True)
class Opening:
    """A head of a site, and a cell of it."""

    site: str
    head: int
    query: int
    key: int


def opening(scene: Scene, folder: Path | None = None) -> Opening | None:
    """The best head as the run kept it, else the one that aligns or focuses most; and what it looks at first. A model
    without attention has none."""
    sites = {name: site for name, site in scene.sites.items() if isinstance(site, Site)}
    if not sites:
        return None
    name, head = first_head(scene, folder, sites)
    site = sites[name]
    # a query that sees one key alone has nothing to choose from
    choosing = site.visible(head, range(min(FIRST, site.shape[0]))).sum(-1) > 1
    query = int(choosing.int().argmax())
    return Opening(name, head, query, int(site.row(head, query).argmax()))


def first_head(scene: Scene, folder: Path | None, sites: dict[str, Site]) -> tuple[str, int]:
    cells = sum(site.heads * site.shape[0] * site.shape[1] for site in sites.values())
    learner, source, written = scene.asked.learner, scene.axes.get("source"), scene.axes.get("written")
    if cells > MOST_CELLS:
        return next(iter(sites)), 0
    if isinstance(learner, Translator) and source and written and written.words:
        found = best_head(learner, folder, look(learner, " ".join(source.words), " ".join(written.words)))
        if found.layer in sites:
            return found.layer, found.head
    focused = {name: site.statistics().confidence for name, site in sites.items()}
    name = max(focused, key=lambda name: float(focused[name].max()))
    return name, int(focused[name].argmax())
