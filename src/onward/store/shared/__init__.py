"""Code that both databases share."""
