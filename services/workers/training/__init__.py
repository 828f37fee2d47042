"""Training of draft adapters: prompts, the target's answers, hidden states, the trainer and its report."""
