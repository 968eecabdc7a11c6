"""The scheduler under simulated load: a virtual clock, step times measured once on a real machine."""
