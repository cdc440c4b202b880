"""What is measured and stored with a trained net: scores, statistics of the domains, times."""
