"""A request taken apart in; its answer out: models, scenes, sites and heads. No server is needed to ask these."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.serve import described
from regard.serve.asking import Desk, whole
from regard.serve.scenes import THUMBNAIL, Showing, small
from regard.serve.stages import pair as pair_of
from regard.serve.stages import stage_named
from regard.serve.wire import Answer, Refused, as_floats, as_json, as_shades, as_spread, as_thumbnails

MOST_CELLS = 65_536
PIXELS = 4096  # a side of a map


@dataclass(frozen=True)
class Request:
    """The parts of an address, what stands behind its question mark, and what was sent with it."""

    desk: Desk
    path: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def showing(self) -> Showing:
        return self.desk.scenes[self.path["id"]]

    @property
    def site(self) -> str:
        return self.path["site"]

    @property
    def head(self) -> int:
        """Its number, if the site has it."""
        number = self.number("head")
        self.showing.head(self.site, number)
        return number

    @property
    def stage(self) -> str:
        return stage_named(self.query.get("stage") or "weights")

    def number(self, name: str) -> int:
        """A whole number in the path."""
        text = self.path[name]
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise Refused(f"there is no {name} {text!r:.40}; they are counted from 0", 404)
        return int(text)

    def asked(self, name: str, usual: int, least: int, most: int) -> int:
        """A whole number behind the question mark."""
        found = whole(self.query, name, least, most)
        return usual if found is None else found

    def window(self) -> tuple[range, range]:
        """Queries and keys: all, or from top to bottom and from left to right, the last of each left out."""
        n_q, n_k = self.showing.site(self.site).shape
        found = []
        for first, last, count in (("top", "bottom", n_q), ("left", "right", n_k)):
            start, stop = self.asked(first, 0, 0, count), self.asked(last, count, 0, count)
            if start >= stop:
                raise Refused(f"{first}={start} and {last}={stop} leave nothing to show; there are {count}")
            found.append(range(start, stop))
        return found[0], found[1]


# --- models and scenes ---


def models(asked: Request) -> Answer:
    return as_json({"models": asked.desk.shelf.listed()})


def checkpoints(asked: Request) -> Answer:
    return as_json(asked.desk.shelf.training(asked.path["name"]))


def new_scene(asked: Request) -> Answer:
    return as_json(described.described(asked.desk.scene(asked.body)))


def scene(asked: Request) -> Answer:
    return as_json(described.described(asked.showing))


def statistics(asked: Request) -> Answer:
    return as_json(asked.showing.statistics())


def picture(asked: Request) -> Answer:
    if asked.showing.scene.picture is None:
        raise Refused("this scene has no picture; it is of a text", 404)
    return Answer(described.png(asked.showing.scene), "image/png")


def overview(asked: Request) -> Answer:
    """Thumbnails of every head, site after site as they are found."""
    size, showing = asked.asked("size", THUMBNAIL, 4, 512), asked.showing
    shapes = [(site.heads, *small(site.shape, size)) for site in showing.sites.values()]
    return as_thumbnails(shapes, (showing.overview(name, size)[1].cpu().numpy() for name in showing.sites))


# --- sites and heads ---


def thumbnails(asked: Request) -> Answer:
    _, pictures = asked.showing.overview(asked.site, asked.asked("size", THUMBNAIL, 4, 512))
    return as_thumbnails([tuple(pictures.shape)], iter([pictures.cpu().numpy()]))


def gate(asked: Request) -> Answer:
    """Of a gate every weight: channels × 1 × 1, 1 × rows × columns of places, or one for each word."""
    return as_floats(asked.showing.gate(asked.site).weights[0].float().cpu().numpy())


def map_of(asked: Request) -> Answer:
    head, stage, (queries, keys) = asked.head, asked.stage, asked.window()
    size = asked.asked("rows", PIXELS, 1, PIXELS), asked.asked("columns", PIXELS, 1, PIXELS)
    values, low, high = asked.desk.scenes.picture(asked.showing, asked.site, head, stage, queries, keys, size)
    return as_shades(values) if stage in ("weights", "visible") else as_spread(values, low, high)


def cells(asked: Request) -> Answer:
    head, (queries, keys) = asked.head, asked.window()
    if len(queries) * len(keys) > MOST_CELLS:
        raise Refused(f"{len(queries)} × {len(keys)} cells are more than {MOST_CELLS:,}; ask for a smaller window")
    return as_floats(asked.desk.scenes.part(asked.showing, asked.site, head, asked.stage, queries, keys))


def row(asked: Request) -> Answer:
    return line(asked, "query", 0)


def column(asked: Request) -> Answer:
    return line(asked, "key", 1)


def line(asked: Request, name: str, side: int) -> Answer:
    """One row or one column, all of it."""
    head, number, shape = asked.head, asked.number(name), asked.showing.site(asked.site).shape
    if number >= shape[side]:
        raise Refused(f"{asked.site} has no {name} {number}; they are counted from 0 to {shape[side] - 1}", 404)
    ranges = [range(shape[0]), range(shape[1])]
    ranges[side] = range(number, number + 1)
    found = asked.desk.scenes.part(asked.showing, asked.site, head, asked.stage, *ranges)
    return as_floats(found.reshape(-1))


def pair(asked: Request) -> Answer:
    (n_q, n_k), head = asked.showing.site(asked.site).shape, asked.head
    query, key = asked.asked("query", 0, 0, n_q - 1), asked.asked("key", 0, 0, n_k - 1)
    return as_json(pair_of(asked.showing.site(asked.site), head, query, key))


def check(asked: Request) -> Answer:
    head = asked.head
    found = asked.showing.site(asked.site).check(head)
    return as_json({"difference": found.error, "tolerance": found.tolerance})
