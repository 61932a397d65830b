"""Where copies should be, and how one catches up. Pure: it decides, it never moves a byte."""
