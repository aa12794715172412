"""Recipe: attention = score × position × pattern × normaliser, and perhaps a gate; a value to print and compare."""

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor, nn

from regard.attention import parts
from regard.attention.gate import Gate, NoGate, StateGate, check_state
from regard.attention.normaliser import Normaliser, Softmax
from regard.attention.parts import attach_own_parts, format_part, own_parts_of, parse_part, parse_toml
from regard.attention.pattern import Full, Pattern
from regard.attention.position import EmbeddingPosition, NoPosition, Position, QueryKeyPosition, ScorePosition
from regard.attention.position_variants import DependencyTree, RelativeVectors
from regard.attention.score import InnerProduct, ScaledDot, Score


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The four parts, and a gate if there is one. The default is the Transformer's: softmax(q kᵀ / √d) v of everybody.

    Examples:
        >>> recipe = Recipe(position=Rotary(), pattern=Causal() & Window(256))
        >>> recipe.pattern, recipe.normaliser
        (Causal() & Window(size=256), Softmax())
        >>> print(recipe.to_toml(), end="")
        score = 'ScaledDot()'
        position = "Rotary(theta=10000.0, pairs='adjacent')"
        pattern = 'Causal() & Window(size=256)'
        normaliser = 'Softmax()'
        >>> Recipe.from_toml("pattern = 'Causal() & Window(256)'") == Recipe(pattern=Causal() & Window(256))
        True
    """

    score: Score = ScaledDot()
    position: Position = NoPosition()
    pattern: Pattern = Full()
    normaliser: Normaliser = Softmax()
    gate: Gate = NoGate()

    def __post_init__(self):
        kinds = {"score": Score, "position": Position, "pattern": Pattern, "normaliser": Normaliser, "gate": Gate}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} must be a {kind.__name__}, not {getattr(self, name)!r}")
        if RelativeVectors in map(type, self.score_positions) and not isinstance(self.score, InnerProduct):
            raise ValueError(f"RelativeVectors add to the keys of an inner product, which {self.score!r} is not")
        if isinstance(self.gate, StateGate):
            check_state(self.gate, self.score, self.score_positions, self.normaliser)

    def __repr__(self) -> str:
        return f"Recipe({', '.join(f'{name}={part!r}' for name, part in self.parts().items())})"

    def parts(self) -> dict[str, Any]:
        """The parts by name; a gate only if there is one."""
        return {name: part for name, part in vars(self).items() if not isinstance(part, NoGate)}

    @property
    def embedding_positions(self) -> tuple[EmbeddingPosition, ...]:
        """The schemes a model adds to its embeddings; attention itself never sees them."""
        return tuple(part for part in self.position.parts() if isinstance(part, EmbeddingPosition))

    @property
    def query_key_positions(self) -> tuple[QueryKeyPosition, ...]:
        return tuple(part for part in self.position.parts() if isinstance(part, QueryKeyPosition))

    @property
    def score_positions(self) -> tuple[ScorePosition, ...]:
        return tuple(part for part in (*self.position.parts(), self.gate) if isinstance(part, ScorePosition))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Token vectors with their positions added, as a model does once before its first layer."""
        for scheme in self.embedding_positions:
            x = scheme.embed(x, positions)
        return x

    def with_tree(self, *, tree: DependencyTree) -> "Recipe":
        """This recipe with the dependency trees of one batch."""
        return replace(self, position=self.position.with_tree(tree))

    def with_gate(self, *, log_decay: Tensor | None = None, beta: Tensor | None = None, first: int = 0) -> "Recipe":
        """This recipe with log a, (b, h, t) or (b, h, t, d), and β, (b, h, t), of the keys from index `first` on.

        Examples:
            >>> recipe = Recipe(score=Dot(), pattern=Causal(), normaliser=Unnormalised(), gate=ScalarDecay())
            >>> recipe.with_gate(log_decay=torch.zeros(1, 2, 5)).gate
            ScalarDecay(log_decay 1×2×5)
            >>> recipe.with_gate(beta=torch.ones(1, 2, 5))
            Traceback (most recent call last):
                ...
            ValueError: ScalarDecay() wants log_decay of each token; log_decay is missing
        """
        return replace(self, gate=self.gate.bind(log_decay, beta, first))

    def for_training(self) -> "Recipe":
        """This recipe with its normaliser's training form: hard attention samples."""
        return replace(self, normaliser=self.normaliser.for_training())

    def learned(self) -> nn.ModuleDict:
        """The parts with weights that attention itself uses, and those within other parts, for a layer to register."""
        used = {"score": self.score} | {f"position{n}": part for n, part in enumerate(self.score_positions)}
        used |= {f"inside{n}": part for n, part in enumerate(self.query_key_positions)}
        used |= {"pattern": self.pattern, "normaliser": self.normaliser, "gate": self.gate}
        found = (parts.learned_modules(part, name) for name, part in used.items())
        return nn.ModuleDict({way: module for each in found for way, module in each.items()})

    def to_toml(self) -> str:
        """A line of TOML for each part. Learned ones are described, not stored: their weights travel as safetensors."""
        text = "".join(f"{name} = {format_part(part)!r}\n" for name, part in self.parts().items())
        return attach_own_parts(text, parts.find_own_parts(self))

    @staticmethod
    def from_toml(text: str) -> "Recipe":
        """The recipe a file describes; missing lines mean the default. Learned parts come with fresh weights."""
        lines, names = parse_toml(text), [field.name for field in fields(Recipe)]
        if unknown := [line for line in lines if line not in names]:
            raise ValueError(f"a recipe has no {unknown[0]!r}; it has {', '.join(names)}")
        return Recipe(**{name: parse_part(attach_own_parts(part, own_parts_of(text))) for name, part in lines.items()})

    def fresh(self) -> "Recipe":
        """The same recipe with weights of its own, so that layers built from one recipe do not share them."""
        return Recipe(**parts.fresh({"position": self.position} | vars(self)))
