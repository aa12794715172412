"""Notebook display: the microscope of a trace in a cell, without a server.

show("run", "the black cat ate the mouse")
show(translator, "the black cat ate the mouse", site="decoder.0.cross", head=1)
"""

from pathlib import Path
from typing import TYPE_CHECKING

from regard.see.trace.edits import Edits
from regard.see.trace.trace import Trace, trace_model
from regard.tasks.pretrained import PretrainedModel

if TYPE_CHECKING:
    from regard.serve.bundler import NotebookFrame


def show(
    model: PretrainedModel | Path | str | Trace,
    text: str = "",
    *,
    question: str | None = None,
    target: str | None = None,
    edits: Edits = Edits(),
    site: str | None = None,
    head: int | None = None,
) -> "NotebookFrame":
    """What a notebook shows as a page: overview, matrix, lines and more of one scene, with exact numbers.

    Args:
        model: a trained model, the folder of its run, or a scene that was made already.
        text, question, target, edits: as `trace_model` takes them.
        site, head: what the page shows first.
    """
    from regard.serve.bundler import NotebookFrame, standalone_page
    from regard.serve.trace_cache import CachedTrace

    scene = (
        model if isinstance(model, Trace) else trace_model(model, text, question=question, target=target, edits=edits)
    )
    folder = Path(model) if isinstance(model, (str, Path)) else None
    said = Path(scene.request.text).name if scene.image is not None else scene.request.text
    name = scene.task if folder is None else folder.resolve().name
    return NotebookFrame(standalone_page(CachedTrace("copy", name, scene, said, folder), site=site, head=head))
