"""EAGLE-3 heads: behind ``forerun train eagle3``."""
