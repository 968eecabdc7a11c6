"""Networks: their shape as data and the one decoder that runs them."""
