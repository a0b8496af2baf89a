"""Two tiny agents, different in size, architecture and tokenizer, that a laptop's CPU can make and train.

`python -m hacpo_fast.demo` writes them as Hugging Face folders. Nothing is imported here, so that asking
for help stays fast.
"""
