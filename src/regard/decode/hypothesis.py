"""What decoding gives: a translation, with the model's own log-probability of every token of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """One translation.

    Args:
        ids: its tokens, without the end.
        scores: the model's log-probability of every token, and of the end if it is finished.
        finished: whether the model ended it; otherwise it met the limit, or a rule that let nothing follow.
        score: what the search ranked it by; log-probability and score differ where a beam has penalties.
    """

    ids: tuple[int, ...]
    scores: tuple[float, ...]
    finished: bool
    score: float

    @property
    def log_probability(self) -> float:
        """log P(exactly these tokens | source), the end included if it is finished."""
        return sum(self.scores)
