"""Nets and solvers that ship with AutoDIAL; data, read with importlib.resources."""
