"""From prompts to the pool of verified responses that all agents share, and to views of it in one agent's tokens."""
