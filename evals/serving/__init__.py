"""Queries of a run, answered from outside: an episode for each, and doors that agents and
trainers come in by.
"""
