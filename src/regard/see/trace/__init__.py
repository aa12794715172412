"""Traces: what one model made of one input, with every attention as it ran, and edits to it."""
