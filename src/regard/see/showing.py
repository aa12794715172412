"""A model and an input in; the microscope on what it made of them, for a notebook, out: no server, nothing to fetch.

show("run", "the black cat ate the mouse")
show(translator, "the black cat ate the mouse", site="decoder.0.cross", head=1)
"""

from pathlib import Path
from typing import TYPE_CHECKING

from regard.see.edits import Edits
from regard.see.scene import Scene, scene_of
from regard.tasks.kept import Kept

if TYPE_CHECKING:
    from regard.serve.embedded import Copy


def show(
    model: Kept | Path | str | Scene,
    text: str = "",
    *,
    question: str | None = None,
    target: str | None = None,
    edits: Edits = Edits(),
    site: str | None = None,
    head: int | None = None,
) -> "Copy":
    """What a notebook shows as a page: overview, matrix, lines and more of one scene, with exact numbers.

    Args:
        model: a trained model, the folder of its run, or a scene that was made already.
        text, question, target, edits: as `scene_of` takes them.
        site, head: what the page shows first.
    """
    from regard.serve.embedded import Copy, page
    from regard.serve.scenes import Showing

    scene = model if isinstance(model, Scene) else scene_of(model, text, question=question, target=target, edits=edits)
    folder = Path(model) if isinstance(model, (str, Path)) else None
    said = Path(scene.asked.text).name if scene.picture is not None else scene.asked.text
    name = scene.task if folder is None else folder.resolve().name
    return Copy(page(Showing("copy", name, scene, said, folder), site=site, head=head))
