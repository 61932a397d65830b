"""The judges judged: planted crimes that they must name, honest histories that they must leave alone."""
