"""Nets as torch modules, and how they are fed."""
