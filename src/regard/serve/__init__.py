"""The microscope: a web page, and the local server of its traces."""

__all__: list[str] = []
