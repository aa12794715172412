"""Benches: the same work done by us and by others, side by side; see `work` for what a work is."""
