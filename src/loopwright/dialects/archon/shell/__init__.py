"""Values in shell scripts: where each reference may stand, and the safe form that replaces it."""
