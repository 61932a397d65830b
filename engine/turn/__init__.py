"""What a turn sees and what it owes: `core` is what the machines of one node share, `effects` what they may owe."""
