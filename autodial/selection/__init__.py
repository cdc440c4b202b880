"""`autodial select`: settings chosen without labels of the target."""
