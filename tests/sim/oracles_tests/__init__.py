"""Each oracle is shown able to fail: a small world in which all is well, and one thing in it that is not."""
