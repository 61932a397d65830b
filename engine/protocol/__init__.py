"""What a client and a node must both know: requests and replies, what may be asked for, bytes, addresses, the greeting.

It is all that the two share. Peers greet each other and cut their bytes into frames in the same words.
"""
