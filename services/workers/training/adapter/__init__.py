"""The draft adapter's training: behind ``forerun train adapter``."""
