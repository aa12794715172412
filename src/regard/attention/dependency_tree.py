"""Dependency trees: depths and paths of tokens, from the index of each token's governor.

A tree comes as CoNLL-U writes it: governors[b, t] is the 1-based index of the governor of token t, 0 for the root and
for padding.
"""

from dataclasses import dataclass

import torch
from einops import einsum
from torch import Tensor

TREE_MISSING = "needs the sentences' trees: use recipe.with_tree(tree=DependencyTree.from_governors(governors))"


@dataclass(frozen=True, eq=False)
class DependencyTree:
    """Which tokens lie on the way from each token to its root, itself included: above[b, t, ancestor].

    Examples:
        >>> tree = DependencyTree.from_governors(torch.tensor([[2, 3, 0]]))  # the cat sleeps
        >>> tree.depth()
        tensor([[2, 1, 0]])
        >>> tree.path()[0]
        tensor([[ 0, -1, -2],
                [ 1,  0, -1],
                [ 2,  1,  0]])
    """

    ancestors: Tensor

    @staticmethod
    def from_governors(governors: Tensor) -> "DependencyTree":
        if governors.dim() != 2 or governors.is_floating_point():
            raise ValueError(f"a tree wants whole head indices shaped (batch, tokens), not {tuple(governors.shape)}")
        tokens = governors.shape[1]
        if governors.numel() and not 0 <= int(governors.min()) <= int(governors.max()) <= tokens:
            raise ValueError(f"a head index lies in 0 (root) to {tokens} (the last token), as in CoNLL-U")
        # one extra index is the root: it is its own governor
        parent = torch.cat((torch.zeros_like(governors[:, :1]), governors), 1)
        at = torch.arange(tokens + 1, device=governors.device).expand_as(parent)
        above = governors.new_zeros(len(governors), tokens + 1, tokens + 1, dtype=torch.bool)
        for _ in range(tokens + 1):
            above = above.scatter(2, at[..., None], torch.ones_like(at[..., None], dtype=torch.bool))
            at = parent.gather(1, at)
        if at.any():
            sentence = int(at.any(1).nonzero()[0])
            raise ValueError(f"sentence {sentence}: the governors form a cycle and never reach the root (0)")
        return DependencyTree(above[:, 1:, 1:])

    def depth(self) -> Tensor:
        """How many edges below the root word, (b, t)."""
        return self.ancestors.sum(-1) - 1

    def path(self) -> Tensor:
        """The signed path from i to j, (b, i, j).

        Along one line of descent it is the difference in depth, positive if j is the deeper; otherwise the length of
        the way over the nearest common ancestor, positive if j comes after i. (Wang et al. always go by the root.)
        """
        shared = einsum(self.ancestors.float(), self.ancestors.float(), "b i a, b j a -> b i j").long()
        depth = self.depth() + 1
        length = depth[:, :, None] + depth[:, None] - 2 * shared
        line = (shared == depth[:, :, None]) | (shared == depth[:, None])
        at = torch.arange(depth.shape[1], device=depth.device)
        order = torch.sign(at - at[:, None])
        return torch.where(line, depth[:, None] - depth[:, :, None], order * length)
