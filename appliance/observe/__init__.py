"""What the running appliance tells about itself: latencies and resources."""
