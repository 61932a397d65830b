"""What the client decides, without a loop and without a network."""
