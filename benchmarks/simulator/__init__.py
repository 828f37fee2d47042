"""A discrete-event replica under the production admission policies, for what cannot be run."""
