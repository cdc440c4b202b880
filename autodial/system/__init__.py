"""The machine: files, devices, processes."""
