"""Lookahead admission: when a waiting request may start, given what the KV pool will hold. Pure; knows no vLLM."""
