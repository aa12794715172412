"""Places in a dependency tree instead of places in a row (Wang et al. 2019).

The absolute place is the depth below the root, the relative one the path through the tree. A scheme is written once
and given the trees of each batch: `recipe.given(tree=Tree.of_heads(heads))`.
"""

from dataclasses import dataclass, field

from torch import Tensor

from regard.attention.position import Beside, Sinusoidal
from regard.attention.relative import Relation
from regard.attention.tree import Tree

ASK = "needs the sentences' trees: use recipe.given(tree=Tree.of_heads(heads))"


@dataclass(frozen=True)
class TreePath(Relation):
    """The path through the tree, no longer than `reach`; for RelativeVectors and RelativeBias."""

    reach: int
    paths: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def kinds(self):
        return 2 * self.reach + 1

    def misfit(self, places):
        if self.paths is None or places <= self.paths.shape[1]:
            return None
        return f"{self} was given trees of {self.paths.shape[1]} words, but there are {places}"

    @property
    def batches(self):
        return 1 if self.paths is None else len(self.paths)

    def given(self, tree: Tree) -> "TreePath":
        return TreePath(self.reach, tree.path())

    def between(self, b, i, j):
        if self.paths is None:
            raise ValueError(f"{self} {ASK}")
        return self.paths[b % len(self.paths), i, j].clamp(-self.reach, self.reach) + self.reach


@dataclass(frozen=True)
class TreeDepth(Beside):
    """The depth in the tree, encoded by the same waves as a place in a row. Add it to Sinusoidal()."""

    theta: float = 10_000.0
    depths: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def batches(self):
        return 1 if self.depths is None else len(self.depths)

    def given(self, tree: Tree) -> "TreeDepth":
        return TreeDepth(self.theta, tree.depth())

    def table(self, at, model):
        if self.depths is None:
            raise ValueError(f"{self} {ASK}")
        depths = self.depths[:, at] if at.dim() == 1 else self.depths.expand(len(at), -1).gather(1, at)
        return Sinusoidal(self.theta).table(depths, model)
