"""What each function does, from claimed work to recorded outcome."""
