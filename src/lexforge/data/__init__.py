"""Files and hubs turned into columns."""
