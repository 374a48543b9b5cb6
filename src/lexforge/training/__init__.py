"""The only package that knows the Hugging Face Trainer."""
