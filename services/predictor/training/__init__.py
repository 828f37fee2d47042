"""How remaining-length models are made; behind ``forerun train predictor``."""
