"""The asynchronous face. The synchronous one is generated from it, but for the connections."""
