"""One file a real agent product: how to start it against a gateway and what it leaves behind."""
