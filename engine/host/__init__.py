"""What lends a node a disk, sockets, threads and time: the doing half, which knows no rule beyond `duties`."""
