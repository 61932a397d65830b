"""Measurements: what a figure in a document was measured with."""
