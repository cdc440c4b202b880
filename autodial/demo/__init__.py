"""`autodial demo`: training, exporting and predicting on digits that the installed packages bring along."""
