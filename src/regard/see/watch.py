"""Watching: every attention of any model while a block lasts, by its own code: Hugging Face's, torch's or ours.

    with watch(model) as seen:
        model.generate(**inputs)
    seen["decoder.0.self"][-1].weights(head=3), seen.check()

The model runs as it is, with its own kernels; its weights are recomputed from q and k when they are asked for, and
`check` says how far the recomputed output is from the layer's own.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from regard.attention import AttentionCall
from regard.attention.core import RecordedCall, find_sites
from regard.interop import ForeignModel
from regard.see.edits import Edits
from regard.see.sites import AttentionRecorder, AttentionSite, GateSite, HeadStatistics, RecomputationCheck, with_cores

MAX_BYTES = 2**32  # of what is kept, unless more are allowed


@dataclass(frozen=True, eq=False)
class Watched(Mapping[str, list[AttentionSite]]):
    """What was seen, by the names of the attentions: one AttentionSite for each time that it ran.

    Examples:
        >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
        >>> with watch(layer) as seen:
        ...     for length in (3, 5):
        ...         _ = layer(*[torch.randn(1, length, 8)] * 3)
        >>> {name: [site.shape for site in calls] for name, calls in seen.items()}
        {'attention': [(3, 3), (5, 5)]}
        >>> seen.check().holds
        True
    """

    calls: dict[str, list[AttentionSite]] = field(default_factory=dict)
    statistics: dict[str, list[HeadStatistics]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> list[AttentionSite]:
        if name not in self.calls:
            raise ValueError(f"there is no site {name!r:.80}; there are {', '.join(self.calls) or 'none'}")
        return self.calls[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    def check(self) -> RecomputationCheck:
        """The largest |A·V - the layer's own output| of all that was seen."""
        checks = [site.check() for sites in self.calls.values() for site in sites]
        if not checks:
            raise ValueError("nothing was seen; run the model inside of the block, and keep more than statistics")
        return max(checks, key=lambda found: found.error)


@dataclass(frozen=True, eq=False)
class WatchRecorder(AttentionRecorder):
    """A recorder of many calls: it keeps no gradients, and at most so many bytes."""

    statistics_only: bool = False
    max_bytes: int = MAX_BYTES
    seen: Watched = field(default_factory=Watched)

    def keep(self, call: RecordedCall) -> Tensor | None:
        self.refuse_dropped_keys(call)
        changed = super().keep(call)
        (site,) = self.calls.pop(call.site.name)
        if isinstance(site, GateSite):
            return changed
        if self.statistics_only:
            self.seen.statistics.setdefault(site.name, []).append(site.statistics())
            return changed
        # copies of k and v: a static cache writes the next tokens into the same tensors
        parts = {"q": site.q.detach(), "k": site.k.detach().clone(), "v": site.v.detach().clone()}
        parts["output"] = site.output.detach()
        self.seen.calls.setdefault(site.name, []).append(replace(site, **parts))
        held = sum(
            x.nbytes
            for sites in self.seen.calls.values()
            for site in sites
            for x in (site.q, site.k, site.v, site.output)
        )
        if held > self.max_bytes:
            raise ValueError(
                f"{held:,} bytes of attention were seen, and {self.max_bytes:,} may be kept; watch less, watch with "
                "statistics_only=True, or allow more: max_bytes"
            )
        return changed

    def refuse_dropped_keys(self, call: RecordedCall) -> None:
        """Cells cannot be edited where the cache of a sliding window may have dropped the keys that came first."""
        edits = self.edits.at_site(call.site.name)
        if not isinstance(call, AttentionCall) or not (edits.weights or edits.masks):
            return
        window, (n_q, n_k) = vars(call.layer).get("sliding_window"), (call.q.shape[2], call.k.shape[2])
        if window is not None and n_q < n_k and n_k >= window:
            raise ValueError(
                f"the cache of {call.site.name} keeps a window of {window} keys, so its cells cannot be counted from "
                "the first token; edit whole heads, or generate with use_cache=False"
            )


@contextmanager
def watch(
    model: nn.Module, *, edits: Edits = Edits(), statistics_only: bool = False, max_bytes: int = MAX_BYTES
) -> Iterator[Watched]:
    """Every attention of a model while the block lasts; then the model is as it was.

    Args:
        model: of transformers, of torch's own attention layers, or ours.
        edits: what is changed inside of the running model, generation included.
        statistics_only: keep the statistics of each head instead of q, k, v and the outputs.
        max_bytes: of what may be kept.

    Examples:
        >>> layer, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 5, 8)
        >>> with regard.watch(layer) as seen:
        ...     output, _ = layer(x, x, x)
        >>> {name: site.weights(head=0).shape for name, (site,) in seen.items()}
        {'attention': torch.Size([5, 5])}
        >>> seen.check().error < 1e-6
        True
    """
    recorder = WatchRecorder(edits, statistics_only=statistics_only, max_bytes=max_bytes)
    with ExitStack() as stack:
        model = with_cores(model)
        names = [site.name for _, _, site in find_sites(model)]
        if unknown := [name for name in edits.site_names if name not in names]:
            raise ValueError(f"there is no site {unknown[0]!r:.80}; there are {', '.join(names)}")
        if edits.swaps:
            raise ValueError(
                f"{edits.swaps[0]}: a watched model reads its own inputs; swap words in a trace, or in them"
            )
        if isinstance(model, ForeignModel):
            stack.enter_context(model.attached())
        stack.enter_context(recorder.record(model))
        yield recorder.seen
