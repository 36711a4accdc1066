"""Routes of loops of roles, their definitions and trackers, as Coqui clients call them."""
