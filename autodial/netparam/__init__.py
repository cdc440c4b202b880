"""What is done to a NetParameter, without torch."""
