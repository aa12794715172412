"""Tests of regard.see.plots."""
