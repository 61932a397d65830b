"""The smart client: it knows where every partition is, talks to primaries, and remaps by itself."""
