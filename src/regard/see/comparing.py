"""Two scenes in; what is said otherwise, and how the probabilities moved, out: before, after and the difference."""

from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile

from jaxtyping import Float
from torch import Tensor

from regard.see.scene import Outcome, Scene


@dataclass(frozen=True)
class Change:
    """Tokens, tags or labels that were replaced, with the place of the first; one side may be empty."""

    at: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Compared:
    """Before, after, and the difference of the rows that can be compared.

    Of a generated text, those are the tokens up to the first other one, and that: later ones stand behind another
    text. To compare all, look at both with one `target`.
    """

    before: Scene
    after: Scene
    changes: tuple[Change, ...]
    rows: tuple[str, ...]
    logits: Float[Tensor, "rows options"]  # after - before
    probabilities: Float[Tensor, "rows options"]  # after - before

    @property
    def largest(self) -> float:
        """The largest difference of a probability."""
        return float(self.probabilities.abs().max()) if self.probabilities.numel() else 0.0

    def moved(self, row: int, count: int = 5) -> list[tuple[str, float, float]]:
        """The options of a row whose probability changed most: name, before, after."""
        if not 0 <= row < len(self.rows):
            raise ValueError(f"there is no row {row} to compare; they are counted from 0 to {len(self.rows) - 1}")
        top = self.probabilities[row].abs().topk(min(count, self.probabilities.shape[1])).indices.tolist()
        before, after = (scene.outcome.probabilities(row) for scene in (self.before, self.after))
        return [(self.before.outcome.name(n), float(before[n]), float(after[n])) for n in top]

    def __str__(self) -> str:
        lines = [f"before  {self.before.said}", f"after   {self.after.said}"]
        for change in self.changes:
            lines.append(f"at {change.at}: {' '.join(change.before) or '∅'} → {' '.join(change.after) or '∅'}")
        return "\n".join([*lines, f"the largest change of a probability is {self.largest:.4f}"])


def compare(before: Scene, after: Scene) -> Compared:
    """The outcomes of two scenes of one model."""
    one, other = before.outcome, after.outcome
    if one.logits.shape[1] != other.logits.shape[1] or before.task != after.task:
        raise ValueError(
            f"{before.task} with {one.logits.shape[1]} options cannot be compared with {after.task} with "
            f"{other.logits.shape[1]}; compare scenes of one model"
        )
    said, otherwise = chosen(before), chosen(after)
    count = min(len(one.rows), len(other.rows))
    if before.written is not None and after.written is not None:
        pairs = zip(before.written, after.written, strict=False)
        count = min(count, 1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    matched = SequenceMatcher(None, said, otherwise, autojunk=False).get_opcodes()
    changes = tuple(Change(a, said[a:b], otherwise[c:d]) for kind, a, b, c, d in matched if kind != "equal")
    logits = other.logits[:count] - one.logits[:count].to(other.logits.device)
    probabilities = shares(other, count) - shares(one, count).to(other.logits.device)
    return Compared(before, after, changes, one.rows[:count], logits, probabilities)


def chosen(scene: Scene) -> tuple[str, ...]:
    """What was said, item by item: the tokens written, or the best option of every row."""
    if scene.written is not None:
        return scene.outcome.rows
    return tuple(scene.outcome.name(n) for n in scene.outcome.logits.argmax(-1).tolist())


def shares(outcome: Outcome, count: int) -> Tensor:
    return outcome.logits[:count].double().softmax(-1).float()
