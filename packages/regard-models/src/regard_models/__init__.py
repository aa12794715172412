"""Trained models of Regard, a folder each: the run as `regard export --to regard` wrote it, and card.md."""
