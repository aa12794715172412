"""A language model and a beginning in; what follows out, token by token as it is chosen, and as text.

Nothing is read twice, as long as the model remembers no more than `context` tokens. A model whose memory grows with the
text (full attention) then begins anew behind the last half of them, as if they were all there is; one whose memory is
bounded (recurrent, windowed, linear) never has to.
"""

import codecs
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from regard.decode.limits import Allowed
from regard.decode.model import at_rest, log_probabilities
from regard.decode.permitted import permitted
from regard.decode.request import Request, Row
from regard.decode.walk import Walker
from regard.models.writer import Writer
from regard.text.vocabulary import BOS, EOS, UNK, Spelt, Tokeniser, Words


@dataclass(frozen=True)
class Token:
    """What was chosen, and the model's own log-probability of it, whatever was cut or sharpened to choose it."""

    id: int
    log_probability: float


def write(
    model: Writer,
    prompt: Sequence[int],
    walker: Walker,
    *,
    tokens: int,
    allowed: Allowed = Allowed(),
    context: int | None = None,
) -> Iterator[Token]:
    """So many tokens after the prompt (without one, from the beginning of all text), fewer if a rule of `allowed` lets
    nothing follow.

    The end of a sentence ends nothing here: for a model of words it is the end of a line.
    """
    if tokens < 1 or (context is not None and context < 2):
        raise ValueError(f"tokens={tokens} should be at least 1, and context={context} at least 2, or None for no end")
    limit = context if grows(model) else None
    recent = deque(prompt or [BOS], maxlen=limit)
    state, unread, seen, row = model.start(1), list(recent), 0, Row(Request(()))
    for _ in range(tokens):
        with at_rest(model):  # not around the yield: whoever reads has gradients of their own
            x, state = model.read(torch.tensor([unread], device=model.words.weight.device), state)
            scores = permitted(log_probabilities(model.logits(x[:, -1:])[:, 0]), [row], allowed)
            token = int(walker.choose(scores, [row]))
        value = float(scores[0, token])
        if value == -torch.inf:
            return
        yield Token(token, value)
        row, seen = row.then(token, value), seen + len(unread)
        recent.append(token)
        unread = [token]
        if limit is not None and seen >= limit:
            state, unread, seen = model.start(1), list(recent)[-(limit // 2) :], 0


def grows(model: Writer) -> bool:
    """Does the model remember more with every token it reads?"""
    with at_rest(model):
        _, state = model.read(torch.tensor([[BOS]], device=model.words.weight.device), model.start(1))
    return model.grows(state)


def usual(words: Tokeniser) -> Allowed:
    """What may be written: nothing that stands for no text. The end of a line is an id of its own for words alone."""
    return Allowed(never=frozenset([UNK] if isinstance(words, Words) else [UNK, EOS]))


def spoken(words: Tokeniser, written: Iterable[int], prompt: Sequence[int] = ()) -> Iterator[str]:
    """The text of each token behind the prompt. Of a letter in several bytes, all comes with the last of them."""
    if isinstance(words, Spelt):
        yield from spelt(words, written, begins=not prompt)
        return
    opens = not prompt or prompt[-1] == EOS
    for one in written:
        yield "\n" if one == EOS else f"{'' if opens else ' '}{words.decode([one])}"
        opens = one == EOS


def spelt(words: Spelt, written: Iterable[int], *, begins: bool) -> Iterator[str]:
    letters = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for one in written:
        text = letters.decode(b"".join(words.spell([one])))
        yield text.removeprefix(words.before) if begins else text
        begins = begins and not text
    yield letters.decode(b"", final=True)
