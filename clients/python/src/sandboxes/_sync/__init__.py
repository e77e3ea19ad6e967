"""The synchronous face: generated from the asynchronous one, but for the connections."""
