"""What a turn sees and owes: `core` is what the machines of a node share, `events` what comes to it, `effects` its debt."""
