"""Values in shell scripts: where each reference is allowed, and the safe form that replaces it."""
