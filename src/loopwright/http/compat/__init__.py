"""Routes and payloads of the systems whose formats Loopwright runs, named after them."""
