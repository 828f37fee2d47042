"""``forerun doctor``: what would keep a system from starting or from running well, and how to put it right."""
