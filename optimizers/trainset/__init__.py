"""What a compilation learns from: dev queries, what is maximised, feedback, and checks for
leaks.
"""
