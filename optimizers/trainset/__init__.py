"""The data that a compilation learns from: dev queries, the objective, feedback, and checks for
leaks.
"""
