"""What openapi/python generates from the contracts."""
