"""The node: it composes the pure machines, owns the only event loop, and has the doors."""
