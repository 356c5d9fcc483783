"""A program in a process of its own: the parent's side, the child's, and what the child gives
up.
"""
