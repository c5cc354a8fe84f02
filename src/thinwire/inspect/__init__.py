"""What gradients look like, what each codec loses of them, and which one is enough. Tensors from files need no torch."""
