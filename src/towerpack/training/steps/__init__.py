"""What one step computes and minimizes."""
