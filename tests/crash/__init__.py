"""Real node processes that are killed, stopped and starved under load, with every promise written down outside."""
