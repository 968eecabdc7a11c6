"""How much of a model's quality a precision keeps: measured against the same weights in 16 bits."""
