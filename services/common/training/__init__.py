"""What every training of Forerun's own parts shares: prompts, the target's answers to them, its residual streams."""
