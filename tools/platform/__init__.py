"""What any command-line program needs, and no search: command line, terminal, files, processes, signals."""
