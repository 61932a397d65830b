"""Foreshore's write-ahead log: everything that survives a process is named here."""
