"""What changed, and what it means: behaviour statistics, and the detectors that read them."""
