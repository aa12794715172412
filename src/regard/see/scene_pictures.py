"""The path of a picture, perhaps a question about it, and a model that looks at it, in; the scene out."""

from einops import rearrange
from jaxtyping import UInt8
from torch import Tensor

from regard.decode.model import at_rest
from regard.models.vision import PatchEncoder, VisionTransformer
from regard.see import walks
from regard.see.attending import Tracing
from regard.see.scene import Asked, Axis, Outcome, Scene, sites_of
from regard.see.swaps import refuse_swaps, swapped
from regard.tasks.answer import Answerer
from regard.tasks.picture import Recogniser
from regard.text.batches import padded
from regard.text.images import read_picture
from regard.text.sight import Sight


def recognised(asked: Asked, recogniser: Recogniser) -> Scene:
    """The picture as it is; its mirror image, which some models ask as well, is not looked at."""
    refuse_swaps(asked.edits, "a picture")
    pixels, tracing, model = seen(recogniser.sight, asked.text), Tracing(asked.edits), recogniser.model
    with at_rest(model):
        x = recogniser.sight.scaled(pixels[None].to(next(model.parameters()).device))
        logits = walks.picture(model, tracing, x).float()
    axes = {"patches": places(model.encoder)} if isinstance(model, VisionTransformer) else {}
    outcome = Outcome(("class",), logits, recogniser.labels.name)
    said = recogniser.labels.name(int(logits.argmax()))
    return Scene(asked, "picture", said, axes, sites_of(tracing), outcome, picture=pixels)


def answered(asked: Asked, answerer: Answerer) -> Scene:
    if asked.question is None:
        raise ValueError("this model answers questions about pictures; give question='what colour is the circle'")
    question = swapped(answerer.words.normal.apply(asked.question), asked.edits)
    asked.refuse_long(len(ids := answerer.ids(question)))
    pixels, tracing, model = seen(answerer.sight, asked.text), Tracing(asked.edits), answerer.model
    with at_rest(model):
        device = next(model.parameters()).device
        tokens, lengths = (part.to(device) for part in padded([ids]))
        x = answerer.sight.scaled(pixels[None].to(device))
        logits = walks.answering(model, tracing, x, tokens, lengths).float()
    words = tuple(answerer.words.normal.apply(question).split())
    text = Axis(tuple(answerer.words.tokens(question)), words, tuple(answerer.words.word_of(question)))
    said, outcome = answerer.labels.name(int(logits.argmax())), Outcome(("answer",), logits, answerer.labels.name)
    axes = {"text": text, "patches": places(model.picture)}
    return Scene(asked, "answer", said, axes, sites_of(tracing), outcome, picture=pixels)


def seen(sight: Sight, path: str) -> UInt8[Tensor, "c h w"]:
    return sight.fitted(read_picture(path, mode="RGB" if sight.channels == 3 else "L"))


def places(encoder: PatchEncoder) -> Axis:
    """The pool's own token first, if it has one, then the patches row by row."""
    rows, columns = encoder.grid
    patches = (f"{y},{x}" for y in range(rows) for x in range(columns))
    return Axis((*["class"] * encoder.pool.extra, *patches), grid=encoder.grid)


def onto_grid(weights: Tensor, axis: Axis) -> Tensor:
    """What each patch weighs, laid out as the picture is; the class token is left out."""
    if axis.grid is None:
        raise ValueError("these are no patches of a picture")
    rows, columns = axis.grid
    return rearrange(weights[..., -rows * columns :], "... (y x) -> ... y x", y=rows)
