"""Tables and figures of the four papers, reproduced from runs."""
