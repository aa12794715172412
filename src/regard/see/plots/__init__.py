"""Plots: views of attention as panels, drawn by matplotlib or printed in a terminal."""
