"""Every expert and depth of a replica on every prompt, recorded; behind ``forerun bench grid``."""
