"""The microscope's server: scenes of trained models in, the page and its numbers out, on this machine alone."""
