"""A model through one door: what it may be, what a call costs, what was answered, and how it
is sent.
"""
