"""The command line's side of every command: its errors, Ctrl-C, and how far long work is."""
