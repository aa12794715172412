"""Kernel of the masked backend."""
