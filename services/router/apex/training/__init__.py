"""Training of route models: behind ``forerun train router``."""
