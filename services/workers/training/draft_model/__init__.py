"""Draft models cut out of their target: behind ``forerun train draft``."""
