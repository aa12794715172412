"""Tests of regard.see.trace."""
