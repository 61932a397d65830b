"""What a node has: `replica`, the fold of its log, over `store`, the rows; and the checkpoint that they are kept in.

The other modules are that checkpoint: `store_lmdb` on disk, `store_writer` a process that writes it, and what their bytes
are. Nothing here knows a peer or a client.
"""
