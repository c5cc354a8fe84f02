"""Ways of training that reduce their tensors through thinwire."""
