"""Comparison of two traces: which outputs changed, and by how much the probabilities, weights and states did."""

from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile

import torch
from jaxtyping import Float
from torch import Tensor

from regard.see.methods.layers import find_blocks, recorded_streams
from regard.see.methods.prediction import frozen_model, run_again
from regard.see.trace import Trace
from regard.tasks.protocol import Predictions


@dataclass(frozen=True)
class OutputChange:
    """Tokens, tags or labels that were replaced, with the position of the first; one side may be empty."""

    position: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Before, after, and the difference of the rows that can be compared.

    Of a generated text, those are the tokens up to and including the first that differs: later ones have another
    prefix. To compare all, trace both with one `target`.

    Examples:
        >>> before = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> after = trace_with_edits(before, Edits(off=(HeadOff("decoder.0.cross", 0),)))
        >>> comparison = compare(before, after)
        >>> comparison.rows, comparison.changes, comparison.logits.shape == before.predictions.logits.shape
        (('le', 'chat', 'dort', '</s>'), (), True)
        >>> comparison.largest_change > 0
        True
        >>> comparison.weight_changes()["decoder.0.cross"][0].item()  # switched off: half of a row's sum
        0.5
        >>> comparison.state_changes()["decoder.0"].shape
        torch.Size([4])
    """

    before: Trace
    after: Trace
    changes: tuple[OutputChange, ...]
    rows: tuple[str, ...]
    logits: Float[Tensor, "rows options"]  # after - before
    probabilities: Float[Tensor, "rows options"]  # after - before

    @property
    def largest_change(self) -> float:
        """The largest difference of a probability."""
        return float(self.probabilities.abs().max()) if self.probabilities.numel() else 0.0

    def most_changed(self, row: int, count: int = 5) -> list[tuple[str, float, float]]:
        """The options of a row whose probability changed most: name, before, after."""
        if not 0 <= row < len(self.rows):
            raise ValueError(f"there is no row {row} to compare; they are counted from 0 to {len(self.rows) - 1}")
        top = self.probabilities[row].abs().topk(min(count, self.probabilities.shape[1])).indices.tolist()
        before, after = (trace.predictions.probabilities(row) for trace in (self.before, self.after))
        return [(self.before.predictions.option_name(n), float(before[n]), float(after[n])) for n in top]

    def weight_changes(self) -> dict[str, Float[Tensor, " heads"]]:
        """Of each head ½ Σ |after - before| of a row, averaged over the rows that both traces have: 0 where nothing
        changed, 1 where a row attends to other keys altogether. Of sites whose keys differ in number, none."""
        found = {}
        for name in self.before.attention_names:
            if name not in self.after.attention_names:
                continue
            one, other = self.before.site(name), self.after.site(name)
            rows, keys = min(one.shape[0], other.shape[0]), min(one.shape[1], other.shape[1])
            # a generated text of another length: what is read before cannot know
            grows = one.site_name.queries == one.site_name.keys and one.site_name.keys in ("read", "text")
            if one.heads != other.heads or (one.shape[1] != other.shape[1] and not grows):
                continue
            rows = min(rows, keys) if one.shape[1] != other.shape[1] else rows
            pairs = [(one.weights(head)[:rows, :keys], other.weights(head)[:rows, :keys]) for head in range(one.heads)]
            found[name] = torch.stack([(b - a.to(b)).abs().sum(-1).mean() / 2 for a, b in pairs])
        return found

    def state_changes(self) -> dict[str, Float[Tensor, " positions"]]:
        """How far the residual stream behind each layer moved at each position that both traces have, as a share of its
        length: ‖after - before‖ / ‖before‖. Of layers that one of the models does not have, none."""
        streams = []
        for trace in (self.before, self.after):
            with frozen_model(trace) as model:
                try:
                    blocks = find_blocks(model)
                except ValueError:  # a recurrent model
                    return {}
                with recorded_streams(blocks) as found:
                    run_again(trace)
            streams.append(found)
        before, after = streams
        changes = {}
        for name, states in before.items():
            alike = name in after and after[name].shape[2:] == states.shape[2:]
            if not alike or states.dim() != 3:  # another model, or the nodes of a graph, which are no positions
                continue
            count = min(states.shape[1], after[name].shape[1])
            old, new = states[0, :count].float(), after[name][0, :count].float()
            changes[name] = (new - old).norm(dim=-1) / old.norm(dim=-1).clamp(min=1e-30)
        return changes

    def __str__(self) -> str:
        lines = [f"before  {self.before.output_text}", f"after   {self.after.output_text}"]
        for change in self.changes:
            lines.append(f"at {change.position}: {' '.join(change.before) or '∅'} → {' '.join(change.after) or '∅'}")
        lines.append(f"the largest change of a probability is {self.largest_change:.4f}")
        heads = [(float(x), name, n) for name, some in self.weight_changes().items() for n, x in enumerate(some)]
        if heads and (most := max(heads))[0] > 0:
            lines.append(f"the weights of {most[1]}, head {most[2]} changed most: {most[0]:.4f} of a row")
        states = [(float(some.max()), name) for name, some in self.state_changes().items() if len(some)]
        if states and (largest := max(states))[0] > 0:
            lines.append(f"the states behind {largest[1]} moved most: by {largest[0]:.4f} of their length")
        return "\n".join(lines)


def compare(before: Trace, after: Trace) -> Comparison:
    """The predictions of two traces of one model.

    Examples:
        >>> before = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> print(compare(before, before))
        before  le chat dort
        after   le chat dort
        the largest change of a probability is 0.0000
    """
    one, other = before.predictions, after.predictions
    if one.logits.shape[1] != other.logits.shape[1] or before.task != after.task:
        raise ValueError(
            f"{before.task} with {one.logits.shape[1]} options cannot be compared with {after.task} with "
            f"{other.logits.shape[1]}; compare traces of one model"
        )
    old, new = output_items(before), output_items(after)
    count = min(len(one.rows), len(other.rows))
    if before.output_ids is not None and after.output_ids is not None:
        pairs = zip(before.output_ids, after.output_ids, strict=False)
        count = min(count, 1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    matched = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes = tuple(OutputChange(a, old[a:b], new[c:d]) for kind, a, b, c, d in matched if kind != "equal")
    logits = other.logits[:count] - one.logits[:count].to(other.logits.device)
    probabilities = probabilities_of(other, count) - probabilities_of(one, count).to(other.logits.device)
    return Comparison(before, after, changes, one.rows[:count], logits, probabilities)


def output_items(trace: Trace) -> tuple[str, ...]:
    """The output, item by item: the generated tokens, or the best option of every row."""
    if trace.output_ids is not None:
        return trace.predictions.rows
    return tuple(trace.predictions.option_name(n) for n in trace.predictions.logits.argmax(-1).tolist())


def probabilities_of(predictions: Predictions, count: int) -> Tensor:
    return predictions.logits[:count].double().softmax(-1).float()
