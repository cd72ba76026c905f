"""Untrusted text (candidates, models, problem files) made safe for logs, events, prompts and screens."""
