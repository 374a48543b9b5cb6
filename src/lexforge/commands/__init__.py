"""What the commands of `lexforge` do: one module each, with the settings `Config` and the function `main`."""
