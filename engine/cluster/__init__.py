"""Who is here, and what the next map is: membership, suspicion, the exchange, and what an operator may order.

It decides when to try and who may speak; what the next map says is `rebalance.plan`.
"""
