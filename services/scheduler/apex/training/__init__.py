"""How depth models are made; behind ``forerun train depth``."""
