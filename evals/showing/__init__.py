"""Figures and trajectories for a person: terminal, tables, plots, the page, reports."""
