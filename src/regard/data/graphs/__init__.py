"""Graphs: nodes, edges and splits, and node features."""
