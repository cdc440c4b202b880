"""Solvers, and what they report."""
